"""Runs Python that a language model wrote. Ray-free; the actor around it is ``actors/sandbox_pool.py``.

===============  ==========================================================================================
module           what it does
===============  ==========================================================================================
``outcome``      what can become of a cell, and whose fault it was; :class:`~.outcome.CellResult`
``cell``         runs inside the child: Jupyter semantics of one stateless cell
``program``      the same for a whole program with a standard input; ``program_calls`` for calls of a
                 solution's functions, ``program_asserts`` for their tests, ``program_values`` between the two
``isolation``    the layers between a cell and the machine: level A, B or none; rlimits in all of them
``refused``      what a cell reads that tries to start a process
``zygote``       one single-threaded process per worker; forks a child per cell
``supervision``  the zygote over its child: deadline, output cap, sweep, report
``wire``         messages between a zygote and its worker
``format``       the exact text of a result that a model sees
``worker``       a zygote process, seen from the pool
``attacks``      what a cell may try, as data
``selftest``     the attacks tried on a zygote
``levels``       the highest level that a machine gives
``pool``         :class:`~.pool.SandboxPool`: workers, queue, retries, clean-up
===============  ==========================================================================================

This file imports nothing on purpose: the zygote imports ``apprentice.sandbox.zygote`` at its start and
everything imported before a fork costs time and memory in every child.
"""
