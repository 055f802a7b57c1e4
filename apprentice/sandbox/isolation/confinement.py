"""The layers put on in order: in the zygote before and after its imports, and in each of its children."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection

from apprentice.sandbox.isolation import capabilities, namespaces
from apprentice.sandbox.isolation.kernel import Refused, prctl
from apprentice.sandbox.isolation.landlock import READ, WRITE, Ruleset
from apprentice.sandbox.isolation.model import Layer, Limits
from apprentice.sandbox.isolation.seccomp import Filter
from apprentice.sandbox.isolation.view import DEVICES, open_to_others, readable

__all__ = ["Confinement"]

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_STACK_BYTES = 64 << 20  # deep recursion in C; more than the gap below the mmap area would not help
_TASKS = 128
_NULL_RIGHTS = WRITE | READ


class Confinement:
    """Some layers on one zygote and its children.

    Args:
        layers: what to put on.
        scratch: folder where cells run if no layer takes it from them; "" for the root folder.
    """

    def __init__(self, layers: Collection[Layer], scratch: str = "") -> None:
        self.layers = frozenset(layers)
        self._scratch = scratch or "/"
        self._nobody = False
        self._folder = namespaces.CellFolder()
        self._ruleset: Ruleset | None = None
        self._filter: Filter | None = None

    @property
    def own_namespaces(self) -> bool:
        """Whether the zygote is pid 1 of its namespace."""
        return Layer.NAMESPACES in self.layers

    def enter(self) -> None:
        """Before the imports. With namespaces it returns in another process than the one that called.

        Raises:
            Refused: a layer cannot be had here.
        """
        if self.own_namespaces:
            self._nobody = namespaces.enter()
        else:
            # Orphans of a cell become children of the zygote instead of init's, so that it can end them.
            prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def settle(self) -> dict[str, str]:
        """After the imports and before the first child; what became of it, for people to read.

        Raises:
            Refused: a layer cannot be had here.
        """
        paths = readable()
        writable = self.own_namespaces or not self.layers & {Layer.LANDLOCK, Layer.SECCOMP}
        if self.own_namespaces:
            namespaces.change_root(paths, nobody=self._nobody)
        elif Layer.CAPABILITIES in self.layers and os.geteuid() == 0:
            self._nobody = capabilities.effective(capabilities.CAP_SETUID) and open_to_others(on_the_way=True)
        if Layer.LANDLOCK in self.layers:
            try:
                self._ruleset = Ruleset([*((p, READ) for p in paths), *((d, _NULL_RIGHTS) for d in DEVICES)])
            except Refused:
                if not self.own_namespaces:  # what Landlock hides is not there in a root of our own
                    raise
                self.layers -= {Layer.LANDLOCK}
        if Layer.SECCOMP in self.layers:
            self._filter = Filter(writable=writable)
        if Layer.CAPABILITIES in self.layers:
            capabilities.forget_bounding()
        return {
            "layers": " ".join(layer for layer in Layer if layer in self.layers),
            "landlock": str(self._ruleset.abi if self._ruleset else 0),
            "account": "nobody" if self._nobody else "root" if os.geteuid() == 0 else "this account",
        }

    def kill_all(self) -> None:
        """With namespaces: end every process but the zygote, which calls it."""
        namespaces.kill_all()

    def renew(self, limits: Limits) -> None:
        """In the zygote, before each child: what one cell left must not be there for the next.

        Raises:
            OSError: it failed; no cell may run then.
        """
        if self.own_namespaces and self._folder.renew(limits.file_bytes) and self._ruleset:
            self._ruleset.renew((namespaces.WORK, READ | WRITE))

    def confine(self, limits: Limits, *, base_bytes: int) -> None:
        """Take from this child what its cell must not have. ``base_bytes``: address space of the zygote.

        Open descriptors above the ones that the cell needs are the caller's to close, afterwards.

        Raises:
            OSError: a layer could not be put on; the cell must not run then.
        """
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        os.chdir(namespaces.WORK if self.own_namespaces else self._scratch)
        if self._ruleset:
            self._ruleset.restrict()
        if Layer.RLIMITS in self.layers:
            self._limit_resources(limits, base_bytes)
        if Layer.CAPABILITIES in self.layers:
            if self._nobody and not self.own_namespaces:
                capabilities.become(capabilities.NOBODY, capabilities.NOBODY, keep=False)
            capabilities.drop_all()
        if self._filter:
            self._filter.install()

    def _limit_resources(self, limits: Limits, base_bytes: int) -> None:
        _limit(resource.RLIMIT_CORE, 0)
        # Soft = hard: the kernel sends SIGKILL, which no handler can swallow.
        _limit(resource.RLIMIT_CPU, max(1, -int(-limits.cpu_s // 1)))
        _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
        _limit(resource.RLIMIT_NOFILE, limits.open_files)
        _limit(resource.RLIMIT_STACK, _STACK_BYTES)
        if self.own_namespaces:
            # Counted for an account in its namespace; elsewhere the user's other processes would count too.
            _limit(resource.RLIMIT_NPROC, _TASKS)
        _limit(resource.RLIMIT_AS, base_bytes + limits.memory_bytes)


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(what, (value, value))
