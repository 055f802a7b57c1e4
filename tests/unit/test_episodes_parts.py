"""Small pieces of the episodes: programs in expert answers, fitting to a budget, the rules of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apprentice.episodes.actions import CallError
from apprentice.episodes.calls import Call, CallRules, Refusal, check_call
from apprentice.episodes.expert_code import extract_code
from apprentice.episodes.factory import ASK_MODES, MODES, make_episode
from apprentice.episodes.parser import parse_turn
from apprentice.episodes.responses import (
    CUT_NOTE,
    cut_head,
    fit,
    observation,
    python_pieces,
    response_turn,
)
from apprentice.trajectory import Owner
from tests.episode_kit import EXPERTS, PROBLEM, call, code, merging_codec, new, plain_codec, think, tiny_codec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("\n\n  x = 1\n  print(x)\n\n", "x = 1\nprint(x)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("Here it is:\n```py\nprint(1)\n```\nThat prints 1.", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("```python\na = 1\n```\nthen\n```python\nprint(a)\n```", "a = 1\nprint(a)"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
        ("<python>\nprint(1)\n</python>", "print(1)"),
        ("So: <python>print(1)</python> <python>\nprint(2)", "print(1)\nprint(2)"),
        ("<python>\n```python\nprint(1)\n```\n</python>", "print(1)"),
        ("import math\nprint(math.gcd(4, 6)", "import math\nprint(math.gcd(4, 6)"),  # broken, but a program
        ("print('\\d')", "print('\\d')"),
        ("42", "42"),
        ("a = 1\r\nprint(a)\r\n", "a = 1\nprint(a)"),
        ("I would rather not.", None),
        ("The answer is 42.", None),
        ("```python\n\n```", None),
        ("<python>\n</python>", None),
        ("```text\nno program here\n```", None),
        ("", None),
        ("null \0 byte", None),
        ("(" * 5000, None),
    ],
)
def test_the_program_in_an_experts_answer(answer: str, program: str | None) -> None:
    assert extract_code(answer) == program


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200), limit=st.integers(1, 60))
def test_a_cut_head_is_a_head_within_its_limit(text: str, limit: int) -> None:
    for codec in (tiny_codec(), plain_codec()):
        head, size = cut_head(codec, codec.representable(text), limit)
        assert codec.representable(text).startswith(head)
        assert size == len(codec.encode_text(head)) <= limit
        if len(codec.encode_text(text)) <= limit:
            assert head == codec.representable(text)


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from("ab é😀\n>."), max_size=300), min_size=1, max_size=4),
    room=st.integers(0, 900),
)
def test_responses_fit_their_room_or_are_refused(texts: list[str], room: int) -> None:
    codec = merging_codec()
    turn = response_turn(codec, [python_pieces(t, "ada", t[::-1]) for t in texts], closed=True)
    whole = sum(map(len, codec.encode_parts([p.part for p in turn])))
    fitted = fit(codec, turn, room)
    if whole <= room:
        assert fitted is not None and not fitted.cut and fitted.pieces == turn
        return
    if fitted is None:  # only where tags and notes alone do not fit, give or take what merges at seams
        sizes = [len(codec.encode_text(p.part.text)) for p in turn if not p.part.trusted]
        note = len(codec.encode_text(CUT_NOTE))
        assert room < whole - sum(sizes) + sum(min(size, note) for size in sizes) + 8
        return
    assert len(fitted) <= room and fitted.cut
    # Tags are whole and in order; every text is whole, or has lost its middle to a note.
    tags = [p.part.text for p in fitted.pieces if p.part.trusted]
    assert tags == [p.part.text for p in turn if p.part.trusted]
    kept = iter([p for p in fitted.pieces if not p.part.trusted])
    for piece in (p for p in turn if not p.part.trusted):
        found = next(kept)
        if found.part.text == piece.part.text:
            continue
        note, tail = next(kept), next(kept)
        assert piece.part.text.startswith(found.part.text) and piece.part.text.endswith(tail.part.text)
        assert (note.part.text, note.owner) == (CUT_NOTE, Owner.OBSERVATION)
        assert found.owner == tail.owner == piece.owner


def test_a_cut_uses_nearly_all_of_the_room() -> None:
    codec = tiny_codec()
    fitted = fit(codec, [observation("x" * 5000)], 1000)
    assert fitted is not None and 990 <= len(fitted) <= 1000
    head, _, tail = (piece.part.text for piece in fitted.pieces)
    assert abs(len(head) - 2 * len(tail)) <= 3


def one(text: str):
    (parsed,) = parse_turn(text).calls
    return parsed


def test_a_call_is_read_with_its_fields() -> None:
    assert check_call(one(think("ada", instruction="Go."))) == Call("think", "ada", "Go.")
    assert check_call(one(code("self", "1"))) == Call("code_interpreter", "self", "", "1")
    assert not Call("code_interpreter", "self").asks_expert and Call("think", "ada").asks_expert


def test_refusals_say_what_to_do() -> None:
    rules = CallRules(["ada", "bob"], max_expert_calls=1, max_tool_calls=9)

    def refused(text: str) -> Refusal:
        decision = rules.decide(one(text))
        assert isinstance(decision, Refusal), decision
        return decision

    assert "think and code_interpreter" in refused(call("search")).message
    assert "ada, bob" in refused(think("eve")).message
    assert "self, ada, bob" in refused(code("eve")).message
    assert rules.decide(one(think("ada"))) == Call("think", "ada")
    spent = refused(think("bob"))
    assert spent.error is CallError.BUDGET_SPENT and "finish without" in spent.message
    assert len(refused(call("x" * 10_000)).message) < 200


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ASK_MODES])
def test_every_mode_makes_an_episode_named_as_asked(mode) -> None:
    codec = tiny_codec()
    episode = new(mode, codec, max_rollout_tokens=1)
    episode.start()
    from tests.episode_kit import sampled

    episode.step(sampled([codec.im_end_id]))
    trajectory = episode.result()
    assert (trajectory.mode, trajectory.trajectory_id, trajectory.group_id) == (mode, "t", "g")
    assert trajectory.problem_id == PROBLEM.problem_id and trajectory.tags["family"] == "product"


def test_an_unknown_mode_is_named() -> None:
    from apprentice.config.schema import ProtocolConfig

    with pytest.raises(ValueError, match="no mode 'duo'; modes are base, collaborative"):
        make_episode(
            "duo",  # type: ignore[arg-type]
            PROBLEM,
            tiny_codec(),
            ProtocolConfig(),
            EXPERTS,
            seed=0,
            trajectory_id="t",
            group_id="g",
        )


@pytest.mark.parametrize("choice", ["problem", "collaborative"])
def test_the_internalized_prompt_is_the_problem_or_table_7(choice: str) -> None:
    codec = tiny_codec()
    ids = new("internalized", codec, internalized_prompt=choice).start().prompt_ids  # type: ignore[union-attr]
    same_as = new("base" if choice == "problem" else "collaborative", codec).start().prompt_ids  # type: ignore[union-attr]
    assert ids == same_as
