"""Learning without Ray and without DeepSpeed: batches, packing, models, and the core of an optimizer step.

* :mod:`~apprentice.learning.batch` - the one type that crosses to the learner;
* :mod:`~apprentice.learning.packing` - sequences into micro-batches, the same on every rank;
* :mod:`~apprentice.learning.model` - a causal language model that yields log-probabilities, not logits;
* :mod:`~apprentice.learning.attention` - attention that does not cross documents;
* :mod:`~apprentice.learning.engine` - what an optimizer step needs of an engine, and a plain PyTorch one;
* :mod:`~apprentice.learning.updates` - one optimizer step of Stage I or of supervised fine-tuning;
* :mod:`~apprentice.learning.schedule` - learning rates.
"""
