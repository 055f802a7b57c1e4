"""What the sandbox can do on this machine, and what to change where it could do more.

``apprentice sandbox doctor`` prints it; the pools of a run do the same start and self-test by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from apprentice.sandbox import selftest
from apprentice.sandbox.isolation import LADDER, Level, Limits
from apprentice.sandbox.selftest import Finding
from apprentice.sandbox.worker import LevelRefused, Worker

__all__ = ["ADVICE", "Examination", "examine", "render"]

ADVICE = """\
what to change for level A
  any container   its seccomp profile has to allow unshare, mount, pivot_root, umount2, open_tree, move_mount
                  and mount_setattr without CAP_SYS_ADMIN
  Docker, Podman  --security-opt seccomp=PROFILE.json with such a profile, or seccomp=unconfined; where
                  AppArmor is on, --security-opt apparmor=unconfined too. Not --privileged: it gives more
                  than is needed
  Kubernetes      securityContext.seccompProfile {type: Localhost, localhostProfile: PROFILE.json} (or
                  Unconfined), appArmorProfile {type: Unconfined}, and hostUsers: false where the cluster has
                  user namespaces for pods; allowPrivilegeEscalation: false may stay
  the node        Linux 5.12 or newer; sysctl user.max_user_namespaces above 0; Debian up to 10:
                  kernel.unprivileged_userns_clone=1; Ubuntu from 23.10:
                  kernel.apparmor_restrict_unprivileged_userns=0, or a profile with `userns,` for this Python
  gVisor          it has no Landlock: level A if it gives namespaces and mounts, else none. It isolates the
                  pod from the node, not a cell from the pod
what to change for level B
  the node        Linux 5.13 or newer with landlock among the LSMs (/sys/kernel/security/lsm; boot with lsm=)
  any container   its seccomp profile has to allow landlock_create_ruleset, landlock_add_rule and
                  landlock_restrict_self"""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found.

    ``facts`` are the zygote's own words (``layers``, ``landlock``, ``account``); ``reasons`` why each higher
    level is not there. Latencies in seconds, round trips of a warm cell: ``cells`` at the level, ``bare`` of
    a zygote with the same modules that forks with rlimits only.
    """

    lowest: Level
    level: Level
    facts: dict[str, str]
    reasons: tuple[tuple[Level, str], ...]
    findings: tuple[Finding, ...]
    cells: tuple[float, ...]
    bare: tuple[float, ...]

    @property
    def reached(self) -> bool:
        """Whether the level is at least the lowest accepted."""
        return LADDER.index(self.level) <= LADDER.index(self.lowest)


async def examine(lowest: Level, imports: tuple[str, ...], *, cells: int = 100) -> Examination:
    """Find the highest level at which no attack gets through, and measure ``cells`` warm cells there.

    Raises:
        SandboxError: a worker did not come up for another reason than its level.
    """
    worker, bare = Worker(imports), Worker(imports)
    reasons: list[tuple[Level, str]] = []
    findings: list[Finding] = []
    try:
        for level in LADDER:
            try:
                await worker.start(level)
            except LevelRefused as refused:
                reasons.append((level, str(refused)))
                continue
            with selftest.targets() as aims:
                findings = await selftest.run(worker, aims)
            through = [f for f in findings if not f.expected]
            if level is Level.NONE or not through:
                break
            reasons.append((level, "the self-test was not passed: " + ", ".join(_named(f) for f in through)))
        await bare.start(Level.NONE)
        at_level, forked = await _measure(worker, bare, cells)
        return Examination(
            lowest, worker.level, worker.facts, tuple(reasons), tuple(findings), at_level, forked
        )
    finally:
        await worker.stop()
        await bare.stop()


def _named(finding: Finding) -> str:
    return f"{finding.attack.row} ({finding.attack.name})"


async def _measure(worker: Worker, bare: Worker, n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In turns, so that what else the machine does weighs on both alike."""
    taken: tuple[list[float], list[float]] = ([], [])
    for i in range(n + 3):
        for which, times in zip((worker, bare), taken, strict=True):
            started = time.perf_counter()
            await which.run("1 + 1", b"", Limits())
            if i >= 3:  # the first are colder
                times.append(time.perf_counter() - started)
    return tuple(taken[0]), tuple(taken[1])


def _quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def render(found: Examination) -> str:
    """The examination as text for a terminal."""
    verdict = "reached" if found.reached else "NOT reached"
    lines = [
        f"isolation level {found.level}; lowest accepted: {found.lowest}, {verdict}",
        f"  layers          {found.facts['layers']} (Landlock version {found.facts['landlock']})",
        f"  cells run as    {found.facts['account']}",
        *(f"  not level {level}     {why}" for level, why in found.reasons),
        "",
        "self-test",
        f"  {'attack':22}{'variant':28}{'stopped':9}by",
    ]
    for f in found.findings:
        gap = found.level in f.attack.gaps
        outcome = "yes" if f.stopped else "gap" if gap and f.expected else "NO"
        by = f.by if f.stopped else f.attack.why if gap else f.detail.splitlines()[0][:60] if f.detail else ""
        lines.append(f"  {f.attack.row:22}{f.attack.name:28}{outcome:9}{by}")
    if found.level is Level.B:
        lines += ["  level B gives cells no folder to write in"]
    lines += ["", f"latency of {len(found.cells)} warm cells `1 + 1`, ms"]
    for name, times in ((f"level {found.level}", found.cells), ("fork with rlimits only", found.bare)):
        p50, p95 = (1e3 * _quantile(times, q) for q in (0.5, 0.95))
        lines.append(f"  {name:24}p50 {p50:6.1f}  p95 {p95:6.1f}")
    ratio = _quantile(found.cells, 0.5) / _quantile(found.bare, 0.5)
    lines.append(f"  {'ratio of the p50':24}{ratio:10.2f}")
    if found.level is not Level.A:
        lines += ["", ADVICE]
    return "\n".join(lines)
