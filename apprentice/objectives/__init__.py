"""Objectives: pure, short functions, one a file. Masks are derived here and never stored.

* :mod:`~apprentice.objectives.advantage` - group-relative advantage (RIVET, Eq. 2);
* :mod:`~apprentice.objectives.policy_loss` - dual-clipped surrogate (Eqs. 3-6);
* :mod:`~apprentice.objectives.sft_loss` - format-aware cross-entropy (Eqs. 7-9);
* :mod:`~apprentice.objectives.logprobs` - log-probabilities of selected positions in bounded memory.
"""
