"""The quality rules of verified trajectories (RIVET, section 3.4), each a named predicate.

"We retain only complete, protocol-compliant trajectories with correct, parseable final answers, valid Python
execution when applicable, and no severe repetition, malformed text, or degenerate call loops."

A rule says True for a trajectory that may stay. :data:`FILTERS` is their order; a trajectory is counted under
the first rule that it breaks. "Severe", "malformed" and "degenerate" are the paper's words; the rules below
are this project's reading of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from apprentice.config.schema import Config
from apprentice.episodes.core import CUT_RESPONSES
from apprentice.episodes.parser import parse_turn
from apprentice.episodes.tools import CODE_INTERPRETER, SELF
from apprentice.tokens import ChatCodec
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = [
    "FILTERS",
    "Filter",
    "complete",
    "correct",
    "no_call_loops",
    "not_repetitive",
    "parseable",
    "protocol_valid",
    "repetition",
    "valid_execution",
    "well_formed",
]

Filter = Callable[[Trajectory, ChatCodec, Config], bool]

_GRAM = 4
_LEAST_GRAMS = 32  # shorter texts are not judged: a list of three numbers repeats itself by nature
_LOOKALIKE = re.compile(r"<\|\w+\|>|</?(?:tool_call|tool_response|think|python|output|tools)>")


def complete(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """The controller ended its final turn, and no tool response was shortened."""
    return trajectory.status is Status.COMPLETE and CUT_RESPONSES not in trajectory.tags


def protocol_valid(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """No call was refused, of whatever kind of error."""
    return not any(call.error for call in trajectory.calls)


def correct(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """The final answer was verified."""
    return trajectory.verdict == "correct"


def parseable(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """The verifier found an answer in the final text."""
    return trajectory.answer is not None and bool(trajectory.answer.strip())


def valid_execution(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """Every Python call ran to its end without an error."""
    return all(call.outcome == "ok" for call in trajectory.calls if call.tool == CODE_INTERPRETER)


def not_repetitive(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """In no span of the controller or an expert is the share of repeated 4-grams above ``max_repetition``."""
    return all(
        repetition(trajectory.token_ids[start:end].tolist()) <= config.stage2.max_repetition
        for start, end, owner, _ in trajectory.spans()
        if owner in (Owner.CONTROLLER, Owner.EXPERT)
    )


def well_formed(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """No replacement character, no thought without an end, and no tag or control token where text should be.

    The controller's calls and closed thoughts are structure; looked at are its text around them, and all that
    experts wrote (a program that prints ``</python>`` would end too early when the controller writes it).
    """
    for owner, text in _texts(trajectory, codec):
        if "\ufffd" in text:
            return False
        if owner is Owner.EXPERT:
            if _LOOKALIKE.search(text):
                return False
            continue
        opens = codec.template.generation_prompt.rstrip().endswith("<think>")
        turn = parse_turn(text.removesuffix("<|im_end|>"), thinking=opens and "<think>" not in text)
        if turn.thinking_unfinished or _LOOKALIKE.search(turn.content):
            return False
    return True


def no_call_loops(trajectory: Trajectory, codec: ChatCodec, config: Config) -> bool:
    """No call was made more than ``max_identical_calls`` times: same tool, model, instruction, own code."""
    requests = Counter(
        (call.tool, call.model, call.instruction.strip(), call.code if call.model == SELF else "")
        for call in trajectory.calls
    )
    return max(requests.values(), default=0) <= config.stage2.max_identical_calls


FILTERS: dict[str, Filter] = {
    "complete": complete,
    "protocol_valid": protocol_valid,
    "correct": correct,
    "parseable": parseable,
    "valid_execution": valid_execution,
    "not_repetitive": not_repetitive,
    "well_formed": well_formed,
    "no_call_loops": no_call_loops,
}
"""Name -> rule, in the order in which they are applied."""


def repetition(token_ids: list[int]) -> float:
    """Share of 4-grams of tokens that have occurred before in the list; 0 for a short list."""
    grams = [tuple(token_ids[i : i + _GRAM]) for i in range(len(token_ids) - _GRAM + 1)]
    if len(grams) < _LEAST_GRAMS:
        return 0.0
    return 1.0 - len(set(grams)) / len(grams)


def _texts(trajectory: Trajectory, codec: ChatCodec) -> Iterator[tuple[Owner, str]]:
    for start, end, owner, _ in trajectory.spans():
        if owner in (Owner.CONTROLLER, Owner.EXPERT):
            yield owner, codec.decode(trajectory.token_ids[start:end].tolist())
