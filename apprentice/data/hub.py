"""Rows of a data set on the Hugging Face hub. Needs a connection; nothing else of the product does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apprentice.data.rows import ParquetRows, Rows, chain_rows
from apprentice.errors import DataError

__all__ = ["fetch_files", "fetch_rows"]

_CONVERTED = "refs/convert/parquet"  # the hub's own Parquet copy: <config>/<split>/<number>.parquet


def fetch_rows(repo: str, split: str | None = None) -> Rows:
    """All rows of ``owner/name`` or ``owner/name:config``, from the Parquet copy that the hub keeps.

    Args:
        repo: data set id, with a configuration after a colon when the set has several.
        split: which split; needed when the set has several. Falls back to the only one there is.

    Raises:
        DataError: offline, no such set, or the configuration or split has to be named.
    """
    name, _, config = repo.partition(":")
    with _hub(repo) as hub:
        listed = hub.HfApi().list_repo_files(name, repo_type="dataset", revision=_CONVERTED)
        files = _choose([f for f in listed if f.endswith(".parquet")], repo, config, split)
        paths = [Path(hub.hf_hub_download(name, f, repo_type="dataset", revision=_CONVERTED)) for f in files]
    return chain_rows(ParquetRows(path) for path in paths)


def fetch_files(repo: str, files: Sequence[str]) -> list[Path]:
    """Download files of a data set as they are, for sets of which the hub keeps no Parquet copy.

    Raises:
        DataError: offline, or there is no such set or file.
    """
    with _hub(repo) as hub:
        return [Path(hub.hf_hub_download(repo, file, repo_type="dataset")) for file in files]


@contextlib.contextmanager
def _hub(repo: str) -> Iterator[Any]:
    """The client of the hub; its errors become ours, with the remedy."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    except ImportError as error:
        raise DataError(f"{repo}: reading from the hub needs the package huggingface_hub") from error
    try:
        yield hub
    except OfflineModeIsEnabled as error:
        raise DataError(
            f"{repo}: the hub is switched off (HF_HUB_OFFLINE); give a local file as source"
        ) from error
    except HfHubHTTPError as error:
        raise DataError(
            f"{repo}: the hub refused ({error}). Check the id; a gated set needs its terms accepted "
            "and HF_TOKEN set"
        ) from error
    except DataError:
        raise
    # No network, or a bad id. Which errors stand for that depends on the HTTP library that the client uses.
    except Exception as error:
        raise DataError(
            f"{repo}: cannot reach the hub ({error}); give a local .jsonl or .parquet file"
        ) from error


def _choose(files: Sequence[str], repo: str, config: str, split: str | None) -> list[str]:
    """The files of one configuration and split among ``<config>/<split>/<file>``."""
    parts = [f.split("/") for f in files if f.count("/") >= 2]
    configs = sorted({p[0] for p in parts})
    if not config:
        if len(configs) != 1 and "default" not in configs and "main" not in configs:
            raise DataError(f"{repo}: name a configuration, {repo}:<one of {configs}>")
        config = configs[0] if len(configs) == 1 else ("default" if "default" in configs else "main")
    splits = sorted({p[1] for p in parts if p[0] == config})
    if not splits:
        raise DataError(f"{repo}: no configuration {config!r}; there are {configs}")
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise DataError(f"{repo}: split {split!r} not found; set split to one of {splits}")
    return sorted("/".join(p) for p in parts if p[0] == config and p[1] == split)
