"""From a Stage-I collaborative trajectory to the Stage-II training sequence (RIVET, appendix A.5, Table 10).

What changes and what stays:

* The prompt becomes the internalized one: the bare problem, or Table 7's (``protocol.internalized_prompt``).
* Every call is written anew, ``{"name": ..., "arguments": {"model": ..., "instruction": ..., "code": ...}}``:
  tool, model and code as the controller wrote them, the instruction replaced by the tool's fixed one.
* All else stays in wording and order: the controller's text around its calls, role markers, tool response
  tags, the experts' texts and programs, Python's output.

The target mask is 1 for everything but the prompt and Python's output, its tags included. The newlines
before ``<output>`` and behind ``</output>`` are the runtime's too: the sequence is cut into tokens exactly as
the internalized episode appends them, so a model that writes the targets meets the same ids again (a test
replays it). All other text is tokenized as one, control tokens only where the protocol, or the controller
itself, has one.

Omega_fmt, the positions of the format loss (Eq. 8), are the tokens of a call's skeleton::

    <tool_call>
    {"name": "code_interpreter", "arguments": {"model": "ada", "instruction": "...", "code": "..."}}
    </tool_call>

namely both delimiters with their line breaks, all keys and punctuation, the tool's name, and the required
fields ``model`` (key and value, which names whom the call addresses) and ``code`` (key and quotes). Not in it
are the optional ``instruction`` (key and value) and what stands in ``code``, which is content. A token that
has characters of both kinds belongs to Omega_fmt: no character of the skeleton is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from apprentice.config.schema import Config, ExpertConfig
from apprentice.episodes.calls import Call, check_call
from apprentice.episodes.collaborative import available_experts
from apprentice.episodes.factory import internalized_prompt
from apprentice.episodes.parser import ParsedCall, parse_turn
from apprentice.episodes.prompts import question_of
from apprentice.episodes.responses import appended_output
from apprentice.episodes.tools import CODE_INTERPRETER, THINK
from apprentice.errors import DataError
from apprentice.learning.batch import SftExample
from apprentice.stage2.masks import encode_flags
from apprentice.tokens import IM_END, ChatCodec, Part
from apprentice.trajectory import Owner, Status, Trajectory

__all__ = ["INSTRUCTIONS", "RESERVED_TAGS", "convert", "question"]

INSTRUCTIONS = {
    THINK: "Solve the current problem independently and provide rigorous mathematical reasoning.",
    CODE_INTERPRETER: "Solve or verify the current problem using Python when helpful.",
}
"""The two fixed instructions of Table 10(b)."""

RESERVED_TAGS = ("<tool_response>", "</tool_response>", "<python>", "</python>", "<output>", "</output>")
"""Tags at which the internalized runtime acts, or which it writes. An expert's text may not contain them."""

_OUTPUT = re.compile(r"\n?<output>\n(.*)\n</output>\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Piece:
    part: Part
    target: bool = True
    format: bool = False


def convert(trajectory: Trajectory, codec: ChatCodec, config: Config) -> SftExample:
    """The Stage-II sequence of a complete, protocol-valid collaborative trajectory, with its masks.

    Args:
        trajectory: of mode ``collaborative``, as :func:`apprentice.stage2.select.select` lets through.
        codec: the controller's.
        config: the recipe under which the trajectory was sampled (protocol and experts).

    Raises:
        DataError: the trajectory cannot be converted; the message says why.
    """
    if trajectory.mode != "collaborative" or trajectory.status is not Status.COMPLETE:
        raise _unfit(trajectory, f"it is {trajectory.mode}/{trajectory.status}, not collaborative/complete")
    prompt = internalized_prompt(question(trajectory, codec, config), config.protocol, _experts(config))
    pieces = [_Piece(part, target=False) for part in codec.prompt_parts(prompt.messages, prompt.tools)]
    boundary = len(pieces)
    for is_turn, spans in _turns(trajectory):
        if is_turn:
            ids = trajectory.token_ids[spans[0][0] : spans[-1][1]].tolist()
            first = spans[0][0] == _prompt_end(trajectory)
            pieces += _controller_turn(trajectory, codec, ids, first=first)
        else:
            pieces += _response_turn(trajectory, codec, spans)
    # The engine is given the prompt's ids and goes on from there: no token spans the boundary.
    pieces[boundary] = replace(pieces[boundary], part=replace(pieces[boundary].part, hard=True))
    if pieces[-1].part.text != IM_END:
        pieces.append(_Piece(Part(IM_END, trusted=True)))
    return _encode(codec, pieces)


def question(trajectory: Trajectory, codec: ChatCodec, config: Config) -> str:
    """The problem's text, read back from the trajectory's own prompt.

    Raises:
        DataError: the prompt is not the one of this recipe.
    """
    prompt = codec.decode(trajectory.token_ids[: _prompt_end(trajectory)].tolist())
    offered = available_experts(_experts(config), config.protocol.routing)
    head, tail = "<|im_start|>user\n", f"{IM_END}\n{codec.template.generation_prompt}"
    found = None
    if head in prompt and prompt.endswith(tail):
        content = prompt[prompt.index(head) + len(head) : -len(tail)]
        found = question_of(content, offered, config.protocol.instructions)
    if found is None:
        raise _unfit(
            trajectory,
            "its prompt is not what this recipe writes; convert it with the recipe that sampled it "
            "(protocol and experts must be the same)",
        )
    return found


def _experts(config: Config) -> tuple[ExpertConfig, ...]:
    return config.experts if config.stage1.use_experts else ()


def _unfit(trajectory: Trajectory, why: str) -> DataError:
    return DataError(f"trajectory {trajectory.trajectory_id} cannot be converted: {why}")


_Span = tuple[int, int, Owner, str]


def _prompt_end(trajectory: Trajectory) -> int:
    return int((trajectory.owner == Owner.PROMPT).sum())


def _turns(trajectory: Trajectory) -> Iterator[tuple[bool, list[_Span]]]:
    """Spans after the prompt, grouped: a controller turn (True), or the response turn after it (False)."""
    group: list[_Span] = []
    for span in trajectory.spans():
        if span[2] is Owner.PROMPT:
            continue
        if group and (span[2] is Owner.CONTROLLER) != (group[0][2] is Owner.CONTROLLER):
            yield group[0][2] is Owner.CONTROLLER, group
            group = []
        group.append(span)
    if group:
        yield group[0][2] is Owner.CONTROLLER, group


# -- the controller's turns -----------------------------------------------------------------------------


def _controller_turn(
    trajectory: Trajectory, codec: ChatCodec, ids: list[int], *, first: bool
) -> Iterator[_Piece]:
    closed = ids[-1] == codec.im_end_id
    runs = _runs(codec, ids[:-1] if closed else ids)
    text = "".join(run for run, _ in runs)
    thinking = first and codec.template.generation_prompt.rstrip().endswith("<think>")
    turn = parse_turn(text, thinking=thinking)
    position = 0
    for parsed in turn.calls:
        yield from _slice(runs, position, parsed.start)
        yield from _call(trajectory, parsed)
        position = parsed.end
    yield from _slice(runs, position, len(text))
    if closed:
        yield _Piece(Part(IM_END, trusted=True))


def _runs(codec: ChatCodec, ids: Sequence[int]) -> list[tuple[str, bool]]:
    """Text of the ids in runs: control tokens that were sampled (True), which stay such, and plain text."""
    runs: list[tuple[str, bool]] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or codec.is_control(ids[end]) != codec.is_control(ids[start]):
            runs.append((codec.decode(ids[start:end]), codec.is_control(ids[start])))
            start = end
    return runs


def _slice(runs: Sequence[tuple[str, bool]], begin: int, end: int) -> Iterator[_Piece]:
    position = 0
    for text, control in runs:
        part = text[max(0, begin - position) : max(0, end - position)]
        if part:
            yield _Piece(Part(part, trusted=control))
        position += len(text)


def _call(trajectory: Trajectory, parsed: ParsedCall) -> Iterator[_Piece]:
    """A call in its canonical form, cut into skeleton and content."""
    call = check_call(parsed)
    if not isinstance(call, Call):
        raise _unfit(trajectory, f"a call is not protocol-valid ({call.error}: {call.message})")

    def json_text(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    def skeleton(text: str) -> _Piece:
        return _Piece(Part(text, trusted=False), format=True)

    yield _Piece(Part("<tool_call>", trusted=True), format=True)
    yield skeleton(f'\n{{"name": {json_text(call.tool)}, "arguments": {{"model": {json_text(call.model)}')
    instruction = json_text(INSTRUCTIONS[call.tool])
    yield _Piece(Part(f', "instruction": {instruction}', trusted=False))
    if call.tool == CODE_INTERPRETER:
        yield skeleton(', "code": "')
        yield _Piece(Part(json_text(call.code)[1:-1], trusted=False))
        yield skeleton('"')
    yield skeleton("}}\n")
    yield _Piece(Part("</tool_call>", trusted=True), format=True)


# -- the responses --------------------------------------------------------------------------------------


def _response_turn(trajectory: Trajectory, codec: ChatCodec, spans: Sequence[_Span]) -> list[_Piece]:
    pieces: list[_Piece] = []
    after_output = False
    for start, end, owner, _ in spans:
        text = codec.decode(trajectory.token_ids[start:end].tolist())
        if owner is Owner.OBSERVATION:
            match = _OUTPUT.fullmatch(text)
            if match is None:
                raise _unfit(trajectory, "a tool response is an error text or was cut")
            if not text.startswith("\n"):  # a `self` call: the newline is the wrapper's in Stage I
                last = pieces[-1]
                pieces[-1] = replace(last, part=replace(last.part, text=last.part.text.removesuffix("\n")))
            pieces += [_Piece(piece.part, target=False) for piece in appended_output(match[1])]
            after_output = True
            continue
        if owner is Owner.EXPERT and any(tag in text for tag in RESERVED_TAGS):
            raise _unfit(trajectory, "an expert's text contains a tag of the protocol")
        if after_output:
            text = text.removeprefix("\n")
        pieces.append(_Piece(Part(text, trusted=owner is Owner.WRAPPER, hard=after_output)))
        after_output = False
    return pieces


# -- tokens ---------------------------------------------------------------------------------------------


def _encode(codec: ChatCodec, pieces: Sequence[_Piece]) -> SftExample:
    ids, (target, other, fmt) = encode_flags(
        codec,
        [piece.part for piece in pieces],
        [piece.target for piece in pieces],
        [not piece.target for piece in pieces],
        [piece.format for piece in pieces],
    )
    assert not (target & other).any(), "a token is half target: a hard boundary is missing"
    return SftExample(ids, target, fmt)
