"""Known problem sets: where they lie, how their rows look, how many there must be, under which licence.

None of them is part of this repository or of the package; they are read from the hub or from a local copy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from apprentice.data.code import guru_code_row, humaneval_row, livecodebench_row, mbpp_row
from apprentice.data.formats import RowAdapter, chat_row, gpqa_row, gsm8k_row, processed_row, solution_row
from apprentice.data.text import question_key
from apprentice.errors import DataError

__all__ = [
    "BENCHMARKS", "Benchmark", "check_size_in_name", "corrected_answer", "find_benchmark", "find_file",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One set.

    ``rows``: split -> expected number of rows. ``about``: the same where its authors say it roughly, as the
    least and the greatest number that is meant. ``files``: for sets that the hub does not convert, release ->
    files to download; then ``config`` is the usual release, and the keys of ``rows`` are releases. ``kind``:
    ``math`` (a gold answer), ``choice`` (a letter) or ``code`` (tests).
    """

    source: str
    licence: str
    split: str | None = None
    config: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    about: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    adapter: RowAdapter | None = None
    by_hand: str = ""
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kind: str = "math"

    def check_rows(self, split: str | None, count: int) -> tuple[str, ...]:
        """Refuse a set of another size: its scores would not be comparable.

        Returns:
            A warning where the number is known roughly, and is another one.

        Raises:
            DataError: the number of rows is not the known one.
        """
        expected = self.rows.get(split or "")
        if expected is not None and count != expected:
            raise DataError(
                f"{self.source} ({split}): {count} rows instead of {expected}: the set has changed. "
                "Download the version you want and give its file as source"
            )
        low, high = self.about.get(split or "", (0, count))
        return () if low <= count <= high else (_unexpected(f"{self.source} ({split})", count, low, high),)


def _unexpected(what: str, count: int, low: int, high: int) -> str:
    return f"{what}: {count} rows, where {low} to {high} are expected: is it whole, and the right file?"


_SIZE_IN_NAME = re.compile(r"codegen__\w+?_(\d+(?:\.\d+)?)(k?)")


def check_size_in_name(stem: str, count: int) -> tuple[str, ...]:
    """A warning where a file of guru has other rows than its name says (``codegen__taco_8.8k``)."""
    found = _SIZE_IN_NAME.fullmatch(stem)
    if found is None:
        return ()
    unit = 1000 if found[2] else 1
    half = unit * 10 ** -len(found[1].partition(".")[2]) / 2 if found[2] else 0
    low, high = math.ceil(float(found[1]) * unit - half), math.floor(float(found[1]) * unit + half)
    return () if low <= count <= high else (_unexpected(stem, count, low, high),)


_MAA, _BY_NC_SA = "MAA", "CC BY-NC-SA 4.0"
_GURU_CODE = tuple(
    f"train/codegen__{part}.parquet" for part in ("leetcode2k_1.3k", "primeintellect_7.5k", "taco_8.8k")
)
"""``codegen__livecodebench_440`` is left out, as in the paper."""
_LCB_FILES = ("test.jsonl", *(f"test{i}.jsonl" for i in range(2, 7)))

BENCHMARKS: dict[str, Benchmark] = {
    item.source.lower(): item
    for item in (
        Benchmark("openai/gsm8k", "MIT", "test", "main", {"train": 7473, "test": 1319}, adapter=gsm8k_row),
        Benchmark("HuggingFaceH4/MATH-500", "MIT", "test", rows={"test": 500}),
        Benchmark("math-ai/aime24", _MAA, "test", rows={"test": 30}, adapter=solution_row),
        Benchmark("math-ai/aime25", _MAA, "test", rows={"test": 30}),
        Benchmark("math-ai/aime26", _MAA, "test", rows={"test": 30}),
        Benchmark("math-ai/amc23", _MAA, "test", rows={"test": 40}),
        Benchmark("MathArena/aime_2025", _BY_NC_SA, "train", rows={"train": 30}),
        Benchmark("MathArena/aime_2026", _BY_NC_SA, "train", rows={"train": 30}),
        Benchmark("MathArena/hmmt_feb_2025", _BY_NC_SA, "train", rows={"train": 30}),
        Benchmark("MathArena/apex_2025", _BY_NC_SA, "train", rows={"train": 12}),
        Benchmark("ByteDance-Seed/BeyondAIME", "CC0", "test", rows={"test": 100}),
        Benchmark("OpenEvals/IMO-AnswerBench", "CC BY 4.0", rows={"": 400}),
        Benchmark(
            "Idavidrein/gpqa",
            "CC BY 4.0, gated",
            "train",
            "gpqa_diamond",
            {"train": 198},
            adapter=gpqa_row,
            kind="choice",
        ),
        Benchmark(
            "BytedTsinghua-SIA/DAPO-Math-17k",
            "Apache-2.0",
            "train",
            about={"train": (1_785_000, 1_795_000)},  # 1.79 M
            adapter=chat_row,
        ),
        Benchmark(
            "GAIR-NLP/ToRL",
            "not stated in its repository",
            config="train",
            rows={"test": 374},
            about={"train": (27_500, 28_999)},  # 28k; its paper counts 28,740
            adapter=chat_row,
            files={split: (f"data/torl_data/{split}.parquet",) for split in ("train", "test")},
            by_hand="it is not on the hub: download data/torl_data/train.parquet from its repository",
        ),
        Benchmark(
            "open-r1/DAPO-Math-17k-Processed",
            "Apache-2.0 (of DAPO-Math-17k)",
            "train",
            "en",
            {"train": 14116},
            adapter=processed_row,
        ),
        Benchmark("champ", "MIT", rows={"": 270}),
        Benchmark(
            "LLM360/guru-RL-92k",
            "see its card; parts have licences of their own",
            config="code",
            adapter=guru_code_row,
            about={"code": (17_450, 17_747)},  # 1.3k + 7.5k + 8.8k
            files={"code": _GURU_CODE},
            kind="code",
        ),
        Benchmark(
            "livecodebench/code_generation_lite",
            "see its card (evaluation code: MIT)",
            config="v6",
            rows={"v6": 175, "release_v6": 1055},
            adapter=livecodebench_row,
            files={"v6": ("test6.jsonl",), "release_v6": _LCB_FILES},
            kind="code",
        ),
        Benchmark(
            "openai/openai_humaneval", "MIT", "test", rows={"test": 164}, adapter=humaneval_row, kind="code"
        ),
        Benchmark(
            "google-research-datasets/mbpp",
            "CC BY 4.0",
            "test",
            "full",
            {"train": 374, "test": 500, "validation": 90, "prompt": 10},
            adapter=mbpp_row,
            kind="code",
        ),
        Benchmark(
            "evalplus/mbppplus", "Apache-2.0", "test", rows={"test": 378}, adapter=mbpp_row, kind="code"
        ),
    )
}
"""Lower-case hub id -> what is known of the set."""


def find_file(path: str) -> tuple[Benchmark, str] | None:
    """The known set and release of which a path is the only file, by its last two names."""
    last = "/".join(path.replace("\\", "/").split("/")[-2:]).lower()
    for item in BENCHMARKS.values():
        for release, files in item.files.items():
            if len(files) == 1 and "/" in files[0] and files[0].lower().endswith(last) and "/" in last:
                return item, release
    return None


def find_benchmark(source: str) -> Benchmark | None:
    """The known set behind a hub id (with or without ``:config``)."""
    return BENCHMARKS.get(source.partition(":")[0].lower())


# Golds that are wrong in circulating copies: beginning of the question -> (wrong, right).
_CORRECTIONS: dict[str, tuple[str, str]] = {
    question_key("Define $f(x)=|| x|-\\tfrac{1}{2}|$ and $g(x)=|| x|-\\tfrac{1}{4}|$."): ("384", "385"),
}


def corrected_answer(question: str, answer: str) -> str:
    """The gold, or the right one for the few that are known to be wrong (AIME 2024 I, problem 12)."""
    squeezed = question_key(question).replace(" ", "")
    for start, (wrong, right) in _CORRECTIONS.items():
        if answer.strip() == wrong and squeezed.startswith(start.replace(" ", "")):
            return right
    return answer
