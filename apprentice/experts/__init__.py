"""Frozen experts behind one typed interface. Ray-free; the deployments around it are ``serve/expert.py``.

============  ======================================================================================
module        what it does
============  ======================================================================================
``types``     :class:`~.types.ExpertAnswer`, the :class:`~.types.Backend` protocol, usage
``prompt``    what a real LLM expert is shown, and how a program is taken out of its reply
``worked``    answers from a problem set's worked solutions, with errors and strengths
``openai``    any OpenAI-compatible endpoint
``engine``    an inference engine of our own (the engine is started by ``serve/expert.py``)
``retry``     which failures are tried again, when, and until when
``cache``     record and replay on disk
``expert``    puts a backend, its retries and its cache together: one expert
============  ======================================================================================

An expert's failure is never a policy's failure: every way to fail ends in
:class:`apprentice.errors.ExpertError` with a ``kind``.
"""
