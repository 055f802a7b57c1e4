"""Each attack of docs/sandbox.md by itself: at level A, at level B with its gaps, and layer by layer.

Layer by layer means: each layer that a row names stops the attack alone, and without all of them it succeeds.
So a row fails if its layer is taken out, and if it names one that does nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apprentice.sandbox import selftest
from apprentice.sandbox.attacks import ATTACKS, Attack
from apprentice.sandbox.isolation import Layer, Level
from apprentice.sandbox.isolation.landlock import abi
from apprentice.sandbox.outcome import Outcome
from apprentice.sandbox.selftest import Finding
from apprentice.sandbox.worker import LevelRefused, Worker

pytestmark = pytest.mark.unit

Try = Callable[[Attack, frozenset[Layer] | Level], Finding]


def name(attack: Attack) -> str:
    return f"{attack.row}: {attack.name}"


@pytest.fixture(scope="module")
def attempt() -> Iterator[Try]:
    """Tries one attack under some layers or at a level; a zygote for each set of them is kept."""
    workers: dict[frozenset[Layer] | Level, Worker] = {}
    with asyncio.Runner() as loop, selftest.targets() as aims:

        def attempt(attack: Attack, layers: frozenset[Layer] | Level) -> Finding:
            if layers not in workers:
                worker = Worker((), None if isinstance(layers, Level) else layers)
                try:
                    loop.run(worker.start(layers if isinstance(layers, Level) else Level.NONE))
                except LevelRefused as refused:
                    pytest.skip(f"not on this machine: {refused}")
                workers[layers] = worker
            return loop.run(selftest.run(workers[layers], aims, [attack]))[0]

        yield attempt
        for worker in workers.values():
            loop.run(worker.stop())


def got_through(finding: Finding) -> bool:
    return "BREACH" in finding.detail


@pytest.mark.parametrize("level", [Level.A, Level.B])
@pytest.mark.parametrize("attack", ATTACKS, ids=name)
def test_an_attack_at_a_level(attempt: Try, attack: Attack, level: Level) -> None:
    finding = attempt(attack, level)
    if level in attack.gaps:
        assert got_through(finding), "a gap that is closed is no gap any more: say so in the row"
        assert attack.why
    else:
        assert finding.stopped, finding.detail
    assert finding.expected


ALONE = [(attack, layer) for attack in ATTACKS for layer in Layer if layer in attack.layers]


@pytest.mark.parametrize(("attack", "layer"), ALONE, ids=lambda v: name(v) if isinstance(v, Attack) else v)
def test_each_layer_stops_the_attack_alone(attempt: Try, attack: Attack, layer: Layer) -> None:
    if layer is Layer.LANDLOCK and attack.name in LANDLOCK_SINCE and abi() < LANDLOCK_SINCE[attack.name]:
        pytest.skip(f"Landlock version {abi()} does not do this")
    if layer is Layer.CAPABILITIES and os.geteuid() != 0:
        pytest.skip("this account has none")
    finding = attempt(attack, frozenset({layer}))
    assert finding.stopped, finding.detail
    assert finding.by == layer


LANDLOCK_SINCE = {"TCP": 4, "abstract Unix": 6, "signal": 6}
SYSCTL = {
    "ptrace": ("/proc/sys/kernel/yama/ptrace_scope", "0"),
    "io_uring": ("/proc/sys/kernel/io_uring_disabled", "0"),
    "bpf": ("/proc/sys/kernel/unprivileged_bpf_disabled", "0"),
    "user namespace": ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0"),
    "clone into one": ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0"),
}


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.layers], ids=name)
def test_without_its_layers_the_attack_succeeds(attempt: Try, attack: Attack) -> None:
    path, free = SYSCTL.get(attack.name, ("", ""))
    if os.geteuid() != 0:
        if path and Path(path).exists() and Path(path).read_text().strip() != free:
            pytest.skip(f"this kernel keeps it from accounts like this one: {path}")
        if attack.name == "Python itself" and not os.access(os.__file__, os.W_OK):
            pytest.skip("Python belongs to another account")
        if attack.name == "symbolic link":
            pytest.skip("cells start in the root folder here, where this account makes no links")
    # Being another account, without capabilities, would stop more than the row names.
    rest = frozenset(Layer) - attack.layers - {Layer.CAPABILITIES}
    finding = attempt(attack, rest)
    assert got_through(finding), finding.detail


def test_a_self_test_takes_nothing_for_safe_that_was_not_refused(attempt: Try) -> None:
    mistaken = Attack("row", "a mistake in the attack", "print(undefined)")
    silent = Attack("row", "says nothing", "pass")
    both = Attack("row", "says both", "print('STOPPED')\nprint('BREACH')")
    early = Attack("row", "ends early", "import os\nprint('STOPPED', flush=True)\nos._exit(0)")
    for attack in (mistaken, silent, both, early):
        finding = attempt(attack, Level.NONE)
        assert (finding.stopped, finding.expected) == (False, False), attack.name


def test_a_gap_that_fails_in_another_way_than_expected_is_no_gap(attempt: Try) -> None:
    attack = Attack("row", "broken", "1 / 0", gaps=frozenset({Level.NONE}), why="known")
    assert not attempt(attack, Level.NONE).expected


def test_every_row_has_a_way_to_be_seen_and_the_supervisors_rows_name_their_ends() -> None:
    assert len({name(a) for a in ATTACKS}) == len(ATTACKS)
    alone = [a for a in ATTACKS if not a.layers and not a.gaps and a.outcomes == {Outcome.OK}]
    assert [a.name for a in alone] == ["deep folders"], "sets the scene for the row after it"
