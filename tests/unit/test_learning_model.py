"""Token scores against a plain Hugging Face forward pass (C19); documents stay apart in a pack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from apprentice.errors import ConfigError, DataError
from apprentice.learning.attention import DOCUMENTS
from apprentice.learning.batch import TrainingBatch
from apprentice.learning.microbatch import make_micro_batch
from apprentice.learning.model import TokenScorer, load_causal_lm, random_causal_lm, resolve_attention
from tests.learner_case import make_batch, tiny_config, tiny_scorer
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.unit


def plain_logprobs(model: torch.nn.Module, batch: TrainingBatch, temperature: float = 1.0) -> np.ndarray:
    """Every document alone through the model's own forward, log P(id[i] | id[<i]); NaN at position 0."""
    model.set_attn_implementation("eager")  # type: ignore[operator]
    out = np.full(len(batch.token_ids), np.nan)
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[start:end].astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0].double() / temperature
        scores = torch.log_softmax(logits, -1)
        for i in range(1, len(ids)):
            out[start + i] = scores[i - 1, ids[i]]
    model.set_attn_implementation(DOCUMENTS)  # type: ignore[operator]
    return out


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_c19_packed_scores_equal_one_document_at_a_time(tied: bool, temperature: float) -> None:
    batch = make_batch()
    scorer = tiny_scorer(tied=tied, logits_chunk=13)
    want = plain_logprobs(scorer.model, batch, temperature)
    micro = make_micro_batch(batch, range(len(batch)))
    logprobs, entropy = scorer(micro, temperature=temperature, with_entropy=True)
    assert logprobs.detach().numpy() == pytest.approx(want[micro.index.numpy()], abs=1e-6)
    assert entropy.min() > 0


def test_a_document_does_not_see_its_neighbours() -> None:
    batch = make_batch((20, 20, 20))
    scorer = tiny_scorer()
    middle = make_micro_batch(batch, [1])
    alone = scorer(middle)[0]
    for order in ([0, 1], [1, 2], [0, 1, 2]):
        micro = make_micro_batch(batch, order)
        inside = np.isin(micro.index.numpy(), middle.index.numpy())
        torch.testing.assert_close(scorer(micro)[0][inside], alone, rtol=1e-9, atol=1e-9)


def test_gradients_of_a_pack_equal_those_of_documents_alone() -> None:
    batch = make_batch((20, 33, 9))
    scorer = tiny_scorer(tied=True)

    def gradients() -> list[torch.Tensor]:
        out = [p.grad.clone() for p in scorer.parameters() if p.grad is not None]
        scorer.zero_grad()
        return out

    scorer(make_micro_batch(batch, [0, 1, 2]))[0].sum().backward()
    packed = gradients()
    for i in range(3):
        scorer(make_micro_batch(batch, [i]))[0].sum().backward()
    for a, b in zip(packed, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_bfloat16_and_autocast_stay_near_float64() -> None:
    batch = make_batch()
    want = plain_logprobs(tiny_scorer().model, batch)
    micro = make_micro_batch(batch, range(len(batch)))
    for scorer in (
        tiny_scorer(dtype=torch.bfloat16),
        TokenScorer(random_causal_lm(tiny_config(), dtype=torch.float32, seed=0), autocast=True),
    ):
        logprobs, _ = scorer(micro)
        assert logprobs.dtype is torch.float32
        assert logprobs.detach().numpy() == pytest.approx(want[micro.index.numpy()], abs=0.08)
        logprobs.sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in scorer.parameters())


def test_gradient_checkpointing_changes_nothing() -> None:
    batch = make_batch((20, 33))
    micro = make_micro_batch(batch, [0, 1])
    grads = []
    for checkpointing in (False, True):
        scorer = tiny_scorer()
        if checkpointing:
            scorer.model.gradient_checkpointing_enable({"use_reentrant": False})
        scorer(micro)[0].sum().backward()
        grads.append([p.grad for p in scorer.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_loading_takes_a_folder_and_refuses_what_packing_would_get_wrong(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    model = load_causal_lm(folder, dtype=torch.float32)
    assert model.training and not model.config.use_cache  # type: ignore[union-attr]
    with pytest.raises(DataError, match="no causal language model"):
        load_causal_lm(tmp_path / "nothing", dtype=torch.float32)
    config = tiny_config()
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(DataError, match="sliding_attention"):
        random_causal_lm(config, dtype=torch.float32, seed=0)


def test_random_models_repeat_with_their_seed() -> None:
    a, b, c = (random_causal_lm(tiny_config(), dtype=torch.float32, seed=s).lm_head.weight for s in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_flash_attention_on_a_cpu_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"learner\.attention"):
        resolve_attention("flash_attention_2", torch.device("cpu"))
    assert resolve_attention("auto", torch.device("cpu")) == DOCUMENTS
