"""Apprentice: train compact controllers that learn from stronger LLM experts, then work alone.

This package is the Ray-free library: everything that is substance (trajectories, episode protocols,
objectives, verification, data, metrics) lives here and never imports ray, vllm or deepspeed.
"""

__version__ = "0.1.0"
