"""Synthetic sensitive values: the six entity types of Learning to Ask, Table 2. No real secret is in here."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ENTITIES", "WORDS", "Entity"]

_HEX = string.digits + "abcdef"
_B62 = string.ascii_letters + string.digits
_BASE64 = _B62 + "+/"
_HOST = string.ascii_lowercase + string.digits
WORDS = (
    "amber", "anchor", "basil", "beacon", "birch", "cedar", "cobalt", "comet", "coral", "delta", "ember",
    "falcon", "garnet", "harbor", "indigo", "juniper", "lagoon", "lantern", "maple", "meadow", "nickel",
    "onyx", "orchid", "pebble", "quartz", "raven", "saffron", "summit", "tundra", "violet", "walnut",
    "zephyr",
)  # fmt: skip
_SYLLABLES = ("ba", "do", "fi", "ga", "ki", "lo", "mu", "ne", "po", "ra", "se", "ti", "vu", "wa", "xe", "zo")


@dataclass(frozen=True, slots=True)
class Entity:
    """A type of sensitive value. ``label`` and ``var`` are what Table 3 calls it in prose and in code."""

    name: str
    label: str
    var: str
    held_out: bool
    make: Callable[[random.Random], str]


def _some(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def _api_key(rng: random.Random) -> str:
    return f"sk-cn-{_some(rng, _HEX, 20)}"


def _password(rng: random.Random) -> str:
    return f"{rng.choice(WORDS)}{rng.choice('!#%&*')}{rng.choice(WORDS)}-{_some(rng, string.digits, 2)}"


def _access_token(rng: random.Random) -> str:
    return f"eyJ{_some(rng, _B62, 14)}.{_some(rng, _B62, 24)}.{_some(rng, _B62, 16)}"


def _internal_url(rng: random.Random) -> str:
    host = f"{_some(rng, _HOST, 10)}.{rng.choice(WORDS)}-internal"
    return f"https://{host}.{rng.choice(('net', 'io', 'dev'))}"


def _database(rng: random.Random) -> str:
    user = f"svc_{rng.choice(WORDS)}:{_some(rng, _B62, 10)}"
    host = f"db-{rng.choice(_SYLLABLES)}{rng.choice(_SYLLABLES)}.internal"
    return f"postgres://{user}@{host}:5432/{rng.choice(WORDS)}"


def _aws_secret(rng: random.Random) -> str:
    return _some(rng, _BASE64, 40)


ENTITIES = (
    Entity("api_key", "API key", "API_KEY", False, _api_key),
    Entity("password", "password", "SERVICE_PASSWORD", False, _password),
    Entity("access_token", "access token", "ACCESS_TOKEN", False, _access_token),
    Entity("internal_url", "internal URL", "INTERNAL_URL", False, _internal_url),
    Entity("db_connection", "DB connection string", "DATABASE_URL", True, _database),
    Entity("aws_secret", "AWS secret", "AWS_SECRET_ACCESS_KEY", True, _aws_secret),
)
"""Table 2: four types to train on, two that only held-out problems have."""
