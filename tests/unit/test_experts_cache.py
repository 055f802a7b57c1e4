"""The record/replay cache: several writers, kills in mid-line, replays."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from apprentice.config.schema import ExpertConfig, WorkedBackend
from apprentice.data.problem import Problem, WorkedSolution
from apprentice.episodes.actions import CallExpert
from apprentice.errors import ExpertError
from apprentice.experts.cache import AnswerCache, cache_key
from apprentice.experts.expert import Expert, make_backend
from apprentice.experts.types import ExpertAnswer, Usage

pytestmark = pytest.mark.unit


def key(**changed: object) -> str:
    parts: dict[str, object] = {
        "expert": "e",
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "sampling": {"temperature": 0.6, "max_tokens": 10},
    }
    return cache_key(**(parts | changed))  # type: ignore[arg-type]


def test_the_key_depends_on_everything_that_decides_an_answer() -> None:
    variants = [
        key(),
        key(expert="f"),
        key(model="n"),
        key(messages=[{"role": "user", "content": "r"}]),
        key(messages=[{"role": "system", "content": "q"}]),
        key(sampling={"temperature": 0.7, "max_tokens": 10}),
    ]
    assert len(set(variants)) == len(variants)
    assert key(sampling={"max_tokens": 10, "temperature": 0.6}) == key()


def test_an_answer_comes_back_as_it_went_in(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "deep" / "e.jsonl", "record")
    assert cache.get("k") is None
    answer = ExpertAnswer("é\n\u2028x", usage=Usage(1, None, 0), reasoning="r", finish_reason="length")
    cache.put("k", answer)
    got = AnswerCache(cache.path, "replay").get("k")
    assert got is not None and got.cached
    assert (got.text, got.usage, got.reasoning, got.finish_reason) == (
        answer.text,
        answer.usage,
        "r",
        "length",
    )
    assert got.spent == Usage(0, 0, 0), "a replayed answer costs nothing"


def test_a_replay_miss_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ExpertError, match="cache: record") as caught:
        AnswerCache(tmp_path / "e.jsonl", "replay").get("k", expert="e")
    assert caught.value.kind == "replay_miss"


def test_a_line_torn_by_a_kill_is_ignored_and_closed_off(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    cache = AnswerCache(path, "record")
    cache.put("a", ExpertAnswer("A"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    reader = AnswerCache(path, "record")
    assert reader.get("a") is not None and reader.get("b") is None
    reader.put("b", ExpertAnswer("B"))
    again = AnswerCache(path, "replay")
    for k, text in (("a", "A"), ("b", "B")):
        got = again.get(k)
        assert got is not None and got.text == text
    # The reader that had seen the torn line reads on behind it.
    got = reader.get("b")
    assert got is not None and got.text == "B"
    for garbage in (b"null\n", b'{"v": 1}\n', b'{"v": 99, "key": "a"}\n', b"\xff\xfe\n"):
        path.write_bytes(garbage + whole)
        assert AnswerCache(path, "replay").get("a") is not None


def test_the_first_record_of_a_request_counts(tmp_path: Path) -> None:
    one, two = (AnswerCache(tmp_path / "e.jsonl", "record") for _ in range(2))
    assert one.get("k") is None and two.get("k") is None
    one.put("k", ExpertAnswer("first"))
    two.put("k", ExpertAnswer("second"))
    for cache in (one, two, AnswerCache(tmp_path / "e.jsonl", "replay")):
        got = cache.get("k")
        assert got is not None and got.text == "first"


WRITER = """
import sys
from apprentice.experts.cache import AnswerCache
from apprentice.experts.types import ExpertAnswer
cache = AnswerCache(sys.argv[1], "record")
print("ready", flush=True)
i = 0
while i < int(sys.argv[3]):
    cache.put(f"{sys.argv[2]}-{i}", ExpertAnswer("x" * (i % 9000)))
    i += 1
"""


def test_concurrent_writers_and_kills_lose_nothing_that_was_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    counts = [200, 200, 10**9]

    def start(name: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WRITER, str(path), str(name), str(counts[name])]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    writers = [start(name) for name in range(3)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    writers[0].wait(timeout=60)
    writers[2].kill()  # in the middle of something
    for writer in writers:
        writer.wait(timeout=60)
        assert writer.stdout is not None
        writer.stdout.close()
    cache = AnswerCache(path, "record")
    for name in (0, 1):
        for i in range(200):
            got = cache.get(f"{name}-{i}")
            assert got is not None and len(got.text) == i
    lines = path.read_bytes().split(b"\n")
    torn = 0
    for line in lines[:-1]:
        try:
            json.loads(line)
        except ValueError:
            torn += 1
    assert torn <= 1
    cache.put("after", ExpertAnswer("x"))
    assert AnswerCache(path, "replay").get("after") is not None


async def test_an_expert_records_and_replays(tmp_path: Path) -> None:
    problems = {"p": Problem("p", "q", "3", worked=WorkedSolution("It is 3.", "print(3)"))}
    call = CallExpert("e", "think", "p", "q", "", "", 10, 0)
    recording = ExpertConfig(name="e", backend=WorkedBackend(), cache="record")
    expert = Expert(recording, make_backend(recording, problems=problems), cache_dir=tmp_path)
    first = await expert.answer(call)
    assert not first.cached
    again = await asyncio.gather(*(expert.answer(call) for _ in range(3)))
    assert all(a.cached and a.text == first.text for a in again)
    replaying = recording.model_copy(update={"cache": "replay"})
    # No problem is known any more: the answer can only come from the disk.
    replay = Expert(replaying, make_backend(replaying, problems={}), cache_dir=tmp_path)
    assert (await replay.answer(call)).text == "It is 3."
    with pytest.raises(ExpertError) as caught:
        await replay.answer(CallExpert("e", "think", "p", "q", "", "", 11, 0))
    assert caught.value.kind == "replay_miss"
