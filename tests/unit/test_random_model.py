"""Models that start from nothing: ``random:<hidden>x<layers>``."""

from pathlib import Path

import pytest

from apprentice.errors import DataError
from apprentice.models import resolve_model
from apprentice.random_model import parse_random
from apprentice.tokens import ChatCodec

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = resolve_model("random:32x1", cache_dir=tmp_path_factory.mktemp("cache"))
    assert isinstance(found, Path)
    return found


@pytest.mark.parametrize("name", ["", "128", "128x0", "100x2", "16x2", "128x3x4", "-32x1"])
def test_a_size_that_makes_no_model_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(DataError, match="random:128x3"):
        parse_random(name)


def test_the_second_call_takes_what_is_there(model: Path) -> None:
    stamp = (model / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("random:32x1", cache_dir=model.parent.parent) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == stamp


def test_the_same_size_gives_the_same_files(model: Path, tmp_path: Path) -> None:
    again = resolve_model("random:32x1", cache_dir=tmp_path)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (Path(again) / name).read_bytes() == (model / name).read_bytes()


def test_its_tokenizer_carries_the_protocol_and_keeps_digits_apart(model: Path) -> None:
    codec = ChatCodec.from_pretrained(str(model))  # refuses a template that cannot carry an episode
    ids = codec.encode_markup("1234 + 56 = 1290")
    assert [codec.decode([i]) for i in ids if codec.decode([i]).strip().isdigit()] == list("1234561290")
    assert codec.decode(codec.encode_markup("naïve 数 \\boxed{7}")) == "naïve 数 \\boxed{7}"
    assert len(codec.encode_markup("<tool_call>")) == 1
    # Words of the prompts are tokens: a model this small has no room for sequences of letters.
    assert len(codec.encode_markup(" advisor")) == 1
    assert len(codec.encode_markup("Answer: \\boxed{answer}")) <= 7
