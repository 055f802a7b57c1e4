"""Conversion to Stage-II sequences: the paper's Table 10, masks to the token, and a replay at run time."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.config.schema import (
    Config,
    ControllerConfig,
    DataConfig,
    ExpertConfig,
    ProblemSetConfig,
    ProtocolConfig,
    WorkedBackend,
)
from apprentice.data.problem import Problem
from apprentice.episodes.actions import ExpertReply, Finish, Generate, PythonResult, RunPython
from apprentice.episodes.factory import make_episode
from apprentice.errors import DataError
from apprentice.learning.batch import SftExample
from apprentice.stage2.convert import INSTRUCTIONS, convert, question
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Owner, Status, Trajectory
from tests.episode_kit import (
    EXPERTS,
    World,
    call,
    code,
    merging_codec,
    new,
    plain_codec,
    qwen_codec,
    sampled,
    think,
    tiny_codec,
)
from tests.shared import shared_path

pytestmark = pytest.mark.unit

ANSWER = "Answer: \\boxed{42}"


def recipe(experts=EXPERTS, **protocol: object) -> Config:
    return Config(
        name="x",
        controller=ControllerConfig(model="m"),
        experts=experts,
        data=DataConfig(train=ProblemSetConfig(name="a", source="b")),
        protocol=ProtocolConfig(**{"instructions": "compact", **protocol}),  # type: ignore[arg-type]
    )


def runs(example: SftExample, codec: ChatCodec) -> list[tuple[int, str]]:
    """``(target, text)`` of each run of equal targets."""
    bounds = np.flatnonzero(np.diff(example.target_mask.astype(int))) + 1
    parts = np.split(np.arange(len(example)), bounds)
    return [(int(example.target_mask[p[0]]), codec.decode(example.token_ids[p].tolist())) for p in parts]


# -- the paper's example ---

CODE = """\
count = 0
valid_triangles = []
for a in range(1, 100):
    b = (a**2 - 1) / 2
    if b.is_integer() and b > 0 and int(b) < 100:
        count += 1
        valid_triangles.append((a, int(b), int(b)+1))
print(f"Number of valid triangles: {count}")
for t in valid_triangles:
    print(t)"""
OUTPUT = """\
Number of valid triangles: 6
(3, 4, 5)
(5, 12, 13)
(7, 24, 25)
(9, 40, 41)
(11, 60, 61)
(13, 84, 85)"""


def flat(text: str) -> str:
    return " ".join(text.split())


class Table10:
    """Rows of both panels as the paper prints them (line breaks are lost in print)."""

    def __init__(self) -> None:
        paper = shared_path("seeds/000_ac480766e2843010.txt").read_text(encoding="utf-8")
        rows = re.findall(
            r"^\| (Input|Call 1|Response 1|Call 2|Code|Output|Final) \| [^|]+ \| (.*?) \|(?: ([01]) \|)?$",
            html.unescape(paper),
            re.MULTILINE,
        )
        assert len(rows) == 14
        self.before = {name: text.replace("\u02c6", "^") for name, text, mask in rows if not mask}
        self.after = [(text, int(mask)) for _, text, mask in rows if mask]
        self.question = self.before["Input"].partition("to the problem. ")[2].partition(" Remember to")[0]

    def expert_text(self) -> str:
        body = self.before["Response 1"].removeprefix("user <tool_response> ")
        return body.removesuffix(" </tool_response> assistant")

    def turn(self, name: str) -> str:
        """A call with the line breaks of the native serialization."""
        body = self.before[name].removeprefix("<tool_call> ").removesuffix(" </tool_call>")
        return f"<tool_call>\n{body}\n</tool_call>"

    def final(self) -> str:
        return self.before["Final"].removeprefix("</tool_response> assistant ")


PAPER = recipe(
    tuple(
        ExpertConfig(name=name, backend=WorkedBackend())
        for name in ("Qwen3.5-9B", "Qwen2.5-Coder-7B-Instruct", "Qwen3-8B")
    ),
    instructions="paper",
)


@pytest.fixture(scope="module")
def table() -> Table10:
    return Table10()


@pytest.fixture(scope="module")
def before(table: Table10) -> Trajectory:
    """Panel (a), played by the collaborative episode."""
    assert flat(f"user <tool_response> <python> {CODE} </python>") == table.before["Code"]
    assert flat(f"<output> {OUTPUT} </output>") == table.before["Output"]
    codec = qwen_codec()
    answers = {"think": table.expert_text(), "code_interpreter": f"```python\n{CODE}\n```"}
    world = World(
        codec,
        [table.turn("Call 1"), table.turn("Call 2"), table.final()],
        expert=lambda r: ExpertReply(answers[r.tool], r.expert),
        python=lambda c: PythonResult(OUTPUT, "ok"),
    )
    problem = Problem("triangles", table.question, "6")
    trajectory = world.play(
        make_episode(
            "collaborative",
            problem,
            codec,
            PAPER.protocol,
            PAPER.experts,
            seed=0,
            trajectory_id="t",
            group_id="g",
        )
    )
    assert [r.expert for r in world.asked] == ["Qwen3.5-9B"] * 2 and world.ran == [CODE]
    return trajectory


def tokenized(codec: ChatCodec, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokenizer's own ids and character offsets, with the one hard boundary: before Python's output."""
    cut = text.index(f"\n<output>\n{OUTPUT}")
    ids, offsets = [], []
    for begin, piece in ((0, text[:cut]), (cut, text[cut:])):
        encoded = codec.tokenizer(piece, return_offsets_mapping=True)
        ids += encoded["input_ids"]
        offsets += [(begin + a, begin + b) for a, b in encoded["offset_mapping"]]
    return ids, offsets


def test_table_10_before_is_tokenized_and_owned_as_printed(before: Trajectory, table: Table10) -> None:
    codec = qwen_codec()
    text = codec.decode(before.token_ids.tolist())
    ids, offsets = tokenized(codec, text)
    assert before.token_ids.tolist() == ids
    # The owner of a token is the owner of its first character, found in the text itself.
    owner = np.full(len(text), Owner.WRAPPER)
    owner[: text.index("<|im_start|>assistant\n") + len("<|im_start|>assistant\n")] = Owner.PROMPT
    for turn in (table.turn("Call 1"), table.turn("Call 2"), table.final()):
        at = text.index(turn)
        owner[at : at + len(turn) + len("<|im_end|>")] = Owner.CONTROLLER
    for expert in (table.expert_text(), CODE):
        at = text.index(expert)
        owner[at : at + len(expert)] = Owner.EXPERT
    at = text.index(f"\n<output>\n{OUTPUT}\n</output>")
    owner[at : at + len(f"\n<output>\n{OUTPUT}\n</output>")] = Owner.OBSERVATION
    assert before.owner.tolist() == [owner[begin] for begin, _ in offsets]
    assert before.status is Status.COMPLETE and before.final_text.endswith("Answer: \\boxed{6}")


def test_table_10_after_has_the_papers_text_and_exactly_its_masks(before: Trajectory, table: Table10) -> None:
    codec = qwen_codec()
    example = convert(before, codec, PAPER)
    got = runs(example, codec)
    assert [mask for mask, _ in got] == [0, 1, 0, 1]
    # Rows of one mask that follow each other are one run. Role markers are printed as their role.
    expected: list[tuple[int, str]] = []
    for text, mask in table.after:
        if expected and expected[-1][0] == mask:
            text = expected.pop()[1] + " " + text
        expected.append((mask, flat(text)))
    prompt = got[0][1].removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    assert flat(prompt) == expected[0][1]
    for (_, text), (_, row) in zip(got[1:], expected[1:], strict=True):
        assert flat(text.replace("<|im_end|>", " ").replace("<|im_start|>", " ")) == row


def test_table_10_after_masks_are_exact_to_the_token(before: Trajectory) -> None:
    """Against the tokenizer's own ids and offsets for the whole text."""
    codec = qwen_codec()
    example = convert(before, codec, PAPER)
    text = codec.decode(example.token_ids.tolist())
    ids, offsets = tokenized(codec, text)
    assert example.token_ids.tolist() == ids
    target = np.ones(len(text), bool)
    target[: text.index("<tool_call>")] = False
    shown = f"\n<output>\n{OUTPUT}\n</output>\n"
    target[text.index(shown) : text.index(shown) + len(shown)] = False
    assert example.target_mask.tolist() == [bool(target[b:e].all()) for b, e in offsets]
    fmt = np.zeros(len(text), bool)
    for skeleton in (
        '<tool_call>\n{"name": "think", "arguments": {"model": "Qwen3.5-9B"',
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"model": "Qwen3.5-9B"',
        ', "code": ""}}\n</tool_call>',
    ):
        assert text.count(skeleton) == 1
        fmt[text.index(skeleton) : text.index(skeleton) + len(skeleton)] = True
    first_end = text.index("}}\n</tool_call>")
    fmt[first_end : first_end + len("}}\n</tool_call>")] = True
    assert example.format_mask.tolist() == [bool(fmt[b:e].any()) for b, e in offsets]
    names = [codec.decode([i]) for i in example.token_ids[example.format_mask].tolist()]
    assert names.count("<tool_call>") == names.count("</tool_call>") == 2
    assert "think" in names and not any("rigorous" in name or "verify" in name for name in names)


# -- the rules of conversion ---


@pytest.fixture(params=["qwen", "tiny", "plain"])
def codec(request: pytest.FixtureRequest) -> ChatCodec:
    return {"qwen": qwen_codec, "tiny": tiny_codec, "plain": plain_codec}[request.param]()


def collaborate(codec: ChatCodec, *turns: str, program: str = "print(42)", **protocol: object) -> Trajectory:
    world = World(
        codec,
        turns,
        expert=lambda r: ExpertReply(
            "Six sevens." if r.tool == "think" else f"```python\n{program}\n```", "e"
        ),
    )
    return world.play(new("collaborative", codec, **protocol))


def test_calls_are_written_anew_and_all_else_stays(codec: ChatCodec) -> None:
    turn = (
        'First.\n<tool_call>{"arguments":{"instruction":"Go!","model":"ada"},"name":"think"}</tool_call>\n'
        f"and\n{code('self', 'print(6 * 7)  # größer')}"
    )
    trajectory = collaborate(codec, turn, f"Thus.\n{ANSWER}")
    got = runs(convert(trajectory, codec, recipe()), codec)
    assert got == [
        (0, "<|im_start|>user\nWhat is 6 times 7?\n\nEnd with: Answer: \\boxed{answer}<|im_end|>\n"
            "<|im_start|>assistant\n"),
        (1, 'First.\n<tool_call>\n{"name": "think", "arguments": {"model": "ada", "instruction": "'
            f'{INSTRUCTIONS["think"]}"}}}}\n</tool_call>\nand\n<tool_call>\n{{"name": "code_interpreter", '
            f'"arguments": {{"model": "self", "instruction": "{INSTRUCTIONS["code_interpreter"]}", '
            '"code": "print(6 * 7)  # größer"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n'
            "Six sevens.\n</tool_response>\n<tool_response>"),
        (0, "\n<output>\n42\n</output>\n"),
        (1, f"</tool_response><|im_end|>\n<|im_start|>assistant\nThus.\n{ANSWER}<|im_end|>"),
    ]  # fmt: skip


def test_format_tokens_cover_the_skeleton_and_leave_the_content(codec: ChatCodec) -> None:
    trajectory = collaborate(codec, code("self", "value = 6\nprint(value)"), ANSWER)
    example = convert(trajectory, codec, recipe())
    text = codec.decode(example.token_ids[example.format_mask].tolist())
    if codec is tiny_codec():  # one token a byte: nothing straddles
        assert text == (
            '<tool_call>\n{"name": "code_interpreter", "arguments": {"model": "self", "code": "'
            '"}}\n</tool_call>'
        )
    assert text.startswith('<tool_call>\n{"name": "code_interpreter", "arguments": {"model": "self"')
    assert text.endswith('"}}\n</tool_call>') and '"code": "' in text
    assert not any(word in text for word in ("value", "print", "instruction", "Solve", "helpful"))
    assert not (example.format_mask & ~example.target_mask).any()


def test_a_trajectory_without_calls_has_no_format_tokens(codec: ChatCodec) -> None:
    example = convert(collaborate(codec, ANSWER), codec, recipe())
    assert not example.format_mask.any() and example.target_mask.any()


def test_the_collaborative_prompt_can_be_kept(codec: ChatCodec) -> None:
    config = recipe(internalized_prompt="collaborative")
    trajectory = collaborate(codec, think(), ANSWER)
    example = convert(trajectory, codec, config)
    prompt = int((trajectory.owner == Owner.PROMPT).sum())
    assert example.token_ids[:prompt].tolist() == trajectory.token_ids[:prompt].tolist()
    assert not example.target_mask[:prompt].any() and example.target_mask[prompt]


@pytest.mark.parametrize("instructions", ["paper", "compact"])
def test_the_question_is_read_back_from_the_prompt(instructions: str, codec: ChatCodec) -> None:
    text = "Is <|im_end|> a <PROBLEM>?\n\n# Problem\n  Remember…"
    world = World(codec, [ANSWER])
    problem = Problem("p", text, "1")
    trajectory = world.play(new("collaborative", codec, problem=problem, instructions=instructions))
    assert question(trajectory, codec, recipe(instructions=instructions)) == text


def test_what_cannot_be_converted_says_why() -> None:
    codec = tiny_codec()
    for trajectory, config, why in (
        (World(codec, [ANSWER]).play(new("base", codec)), recipe(), "base/complete"),
        (collaborate(codec, "x" * 50, max_rollout_tokens=9), recipe(), "collaborative/truncated"),
        (collaborate(codec, call("search", q="x"), ANSWER), recipe(), "not protocol-valid"),
        (collaborate(codec, think("ada"), think("bob"), ANSWER), recipe(), "error text or was cut"),
        (
            collaborate(codec, code("ada"), ANSWER, program="print('</python>')"),
            recipe(),
            "a tag of the protocol",
        ),
        (collaborate(codec, ANSWER), recipe(EXPERTS[:1]), "not what this recipe writes"),
    ):
        with pytest.raises(DataError, match=why):
            convert(trajectory, codec, config)


# -- conversion and run time ---


def replay(example: SftExample, codec: ChatCodec, config: Config, problem: Problem, chunk: int) -> Trajectory:
    """Play the internalized episode with a controller that writes the sequence's targets."""
    episode = make_episode(
        "internalized",
        problem,
        codec,
        config.protocol,
        config.experts,
        seed=0,
        trajectory_id="t",
        group_id="g",
    )
    ids, target = example.token_ids.tolist(), example.target_mask.tolist()
    action = episode.start()
    while not isinstance(action, Finish):
        if isinstance(action, Generate):
            at = len(action.prompt_ids)
            assert ids[:at] == list(action.prompt_ids)
            end = at
            while end < len(ids) and target[end] and end - at < chunk:
                end += 1
            assert end > at, "the episode asks for more where the sequence has no target"
            action = episode.step(sampled(ids[at:end], None))
        else:
            assert isinstance(action, RunPython)
            at = len(episode._builder)  # type: ignore[attr-defined]
            end = at + target[at:].index(True)
            shown = codec.decode(ids[at:end])
            text = shown.removeprefix("\n<output>\n").removesuffix("\n</output>\n")
            action = episode.step(PythonResult(text, "ok"))
    return episode.result()


TEXT = st.text(
    st.sampled_from(list("ab1 .\n\"'\\{}<>/|_)é∑😀")) | st.characters(exclude_categories=["Cs"]), max_size=30
)


def check_replay(codec: ChatCodec, said: list[str], kinds: list[str], chunk: int) -> bool:
    """Collaborate with the given texts, convert, replay; False when conversion refuses the texts."""
    config = recipe(max_expert_calls=20, max_expert_tokens=8000, max_rollout_tokens=100000)
    words = iter(said)
    turns = []
    for number, kind in enumerate(kinds):
        if kind == "think" and number and kinds[number - 1] == "think":
            kind = "code"  # never twice in a row
        one = {"think": think("ada"), "code": code("bob"), "self": code("self", f"print({next(words)!r})")}[
            kind
        ]
        turns.append(next(words) + one)
    world = World(
        codec,
        [*turns, next(words) + ANSWER],
        expert=lambda r: ExpertReply(
            f"{next(words)}." if r.tool == "think" else f"<python>\n1{next(words)}\n</python>", r.expert
        ),
        python=lambda c: PythonResult(next(words), "ok"),
    )
    problem = Problem("p", next(words) + "?", "1")
    episode = make_episode(
        "collaborative",
        problem,
        codec,
        config.protocol,
        config.experts,
        seed=0,
        trajectory_id="t",
        group_id="g",
    )
    trajectory = world.play(episode)
    try:
        example = convert(trajectory, codec, config)
    except DataError:
        return False
    again = replay(example, codec, config, problem, chunk)
    assert again.token_ids.tolist() == example.token_ids.tolist()
    assert (again.owner == Owner.CONTROLLER).tolist() == example.target_mask.tolist()
    prompt = int((again.owner == Owner.PROMPT).sum())
    assert set(again.owner[prompt:].tolist()) <= {Owner.CONTROLLER, Owner.OBSERVATION}
    assert again.status is Status.COMPLETE and again.final_text == trajectory.final_text
    assert [(c.tool, c.model, c.code, c.outcome) for c in again.calls] == [
        (c.tool, c.model, c.code, c.outcome) for c in trajectory.calls
    ]
    return True


@settings(max_examples=120, deadline=None)
@given(
    said=st.lists(TEXT, min_size=20, max_size=20),
    kinds=st.lists(st.sampled_from(["think", "code", "self"]), max_size=4),
    chunk=st.sampled_from([1, 3, 10_000]),
    which=st.sampled_from(["qwen", "tiny", "plain", "merging"]),
)
def test_a_converted_sequence_replays_to_the_same_ids_and_ownership(
    said: list[str], kinds: list[str], chunk: int, which: str
) -> None:
    """Runtime and controller write the same tokens in conversion and at run time."""
    codec = {"qwen": qwen_codec, "tiny": tiny_codec, "plain": plain_codec, "merging": merging_codec}[which]()
    check_replay(codec, said, kinds, chunk)


@pytest.mark.parametrize("text", ["w é\n", "\n\nw", "w>\n", "<w</", ")", "."])
@pytest.mark.parametrize("make", [qwen_codec, tiny_codec, plain_codec, merging_codec])
def test_the_replay_holds_at_seams_for_every_kind_of_call(make, text: str) -> None:
    assert check_replay(make(), [text] * 20, ["think", "code", "self", "think"], 1)


def test_tokens_do_straddle_the_seams_that_are_not_hard() -> None:
    """Without this the test above would prove nothing."""
    codec = merging_codec()
    for left, right in (
        ("</output>\n", "</tool_response>"),
        ("</python>", "\n<output>\n"),
        ("assistant\n", "\nw"),
        ("<tool_response>", "\n<output>\n"),
    ):
        assert codec.encode_text(left + right) != codec.encode_text(left) + codec.encode_text(right)


def test_table_10_replays(before: Trajectory, table: Table10) -> None:
    codec = qwen_codec()
    example = convert(before, codec, PAPER)
    again = replay(example, codec, PAPER, Problem("triangles", table.question, "6"), 10_000)
    assert again.token_ids.tolist() == example.token_ids.tolist()
    assert (again.owner == Owner.CONTROLLER).tolist() == example.target_mask.tolist()
    assert again.final_text == before.final_text and again.calls[1].code == CODE


def test_sampled_thinking_tokens_stay_control_tokens() -> None:
    codec = qwen_codec()
    thought = codec.added_id("<think>")
    world = World(codec, [f"<think>\nHm.\n</think>\n\n{think()}", f"<think>\n\n</think>\n{ANSWER}"])
    trajectory = world.play(new("collaborative", codec))
    example = convert(trajectory, codec, recipe())
    assert trajectory.token_ids.tolist().count(thought) == example.token_ids.tolist().count(thought) == 2
