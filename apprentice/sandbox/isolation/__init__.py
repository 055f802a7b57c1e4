"""The layers between a cell and the machine. Runs in the zygote and its children; Linux, ctypes only.

======  ==========================================================================================
level   what holds a cell
======  ==========================================================================================
A       namespaces: no network, no other processes, no ``/proc``, a read-only root with Python alone in it and
        a sized folder that goes with the cell; Landlock where the kernel has it; seccomp: no processes, no
        programs, no sockets; no capabilities; rlimits
B       the same without namespaces, for containers that refuse them: no folder to write in; what a path's
        ``stat`` says can still be read
none    rlimits, and a sweep of the processes that the cell left. Stops accidents, not attacks: a cell can
        read what the user can read, and open sockets. For debugging
======  ==========================================================================================

=====================  =============================================================================
module                 what it does
=====================  =============================================================================
``model``              levels, the layers each is made of, limits
``confinement``        puts the layers on: the zygote before and after its imports, each child
``namespaces``         level A's machine of its own
``view``               which paths Python needs
``landlock``           which files may be opened
``seccomp``, ``calls``  which system calls may be made
``capabilities``       no powers, no groups, an account that owns nothing
``kernel``             system calls by ctypes
=====================  =============================================================================

A layer that cannot be put on is an error, never left out quietly: :class:`Refused` in the zygote, and a child
ends before its cell.
"""

from apprentice.sandbox.isolation.confinement import Confinement
from apprentice.sandbox.isolation.kernel import Refused, die_with_parent, live_without_parent
from apprentice.sandbox.isolation.model import LADDER, Layer, Level, Limits, layers_of

__all__ = [
    "LADDER",
    "Confinement",
    "Layer",
    "Level",
    "Limits",
    "Refused",
    "die_with_parent",
    "layers_of",
    "live_without_parent",
]
