"""Start-up check: does growing a conversation by appending ids give what the full template would?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apprentice.errors import TemplateError
from apprentice.tokens.codec import IM_END, ChatCodec
from apprentice.tokens.parts import Part
from apprentice.tokens.template import hermes_call

__all__ = ["TemplateReport", "check_template"]


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """What :func:`check_template` found. Facts to log, none of them an error.

    ``append_only_equal``: the append-only ids of a tool conversation equal the full template's.
    ``drops_thinking``: the template deletes the thinking of earlier turns, so its rendering of turn n is no
    prefix of turn n + 1. Episodes append and never re-render, so nothing is lost.
    ``trims_content``: the template strips white space around messages; ours keeps it.
    ``renders_tools``: False: the tools block and tool turns are written by this project.
    ``default_system``: the system text that the template adds by itself when none is given, else empty.
    ``generation_prompt``: what opens an answer.
    """

    append_only_equal: bool
    drops_thinking: bool
    trims_content: bool
    renders_tools: bool
    default_system: str
    generation_prompt: str

    @property
    def opens_thinking(self) -> bool:
        """Whether an answer begins inside of a ``<think>`` block."""
        return self.generation_prompt.rstrip().endswith("<think>")

    def lines(self) -> list[str]:
        """The facts worth a user's attention, one sentence each; empty when there is nothing to say."""
        out = []
        if self.drops_thinking:
            out.append(
                "the chat template deletes the thinking of earlier turns; episodes append tokens and keep it"
            )
        elif not self.append_only_equal:
            out.append(
                "the chat template writes the thinking block of earlier turns otherwise than it opens an "
                "answer; episodes append tokens and keep what was sampled"
            )
        if self.trims_content:
            out.append("the chat template strips white space around messages; episodes keep it")
        if not self.renders_tools:
            out.append(
                "the chat template does not know tools; the tools block of the protocol is written for it"
            )
        if self.default_system:
            out.append(f"without a system message the chat template adds {self.default_system!r}")
        return out


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
]


def _call(path: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "read_file", "arguments": {"path": path}}}


_CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Compare a.py with b.py, then read c.py."},
    {"role": "assistant", "content": "I read both.", "tool_calls": [_call("a.py"), _call("b.py")]},
    {"role": "tool", "content": "contents of a.py"},
    {"role": "tool", "content": "contents of b.py"},
    {"role": "assistant", "content": "", "tool_calls": [_call("c.py")]},
    {"role": "tool", "content": "contents of c.py"},
]


def check_template(codec: ChatCodec, tools: Sequence[Mapping[str, Any]] | None = None) -> TemplateReport:
    """Compare the append-only path with the full template on a conversation of several turns with tools.

    Call it once when a controller is loaded, with the tools of the run, and log the report's ``lines()``.

    Raises:
        TemplateError: they differ in more than the thinking of earlier turns: the model would be trained on
            conversations that it never saw in this form. The message shows where.
    """
    tools = list(tools) if tools else _TOOLS
    appended = append_only_ids(codec, _CONVERSATION, tools)
    full = _full_ids(codec, _CONVERSATION, tools)
    if appended != full:
        _require_same_but_thinking(codec.decode(appended), codec.decode(full))
    hello: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    hello_ids = codec.tokenizer.apply_chat_template(
        hello, add_generation_prompt=True, tokenize=True, return_dict=False, **codec.template.kwargs
    )
    if codec.encode_prompt(hello) != list(hello_ids):
        raise TemplateError(
            "our ids of a plain message differ from the chat template's: the tokenizer splits text in a way "
            f"this project does not know; {codec.decode(codec.encode_prompt(hello))!r} against "
            f"{codec.decode(list(hello_ids))!r}"
        )
    thinking = [
        *hello,
        {"role": "assistant", "content": "<think>\nold plan\n</think>\n\nHello!"},
        {"role": "user", "content": "  indented\n"},
    ]
    rendered = codec.template.render(thinking, None, True)
    opening = re.match(
        r"<\|im_start\|>system\n(.*?)<\|im_end\|>", codec.template.render(hello, None, True), re.S
    )
    return TemplateReport(
        append_only_equal=appended == full,
        drops_thinking="old plan" not in rendered,
        trims_content="\n  indented\n<" not in rendered,
        renders_tools=codec.template.renders_tools,
        default_system=opening.group(1) if opening else "",
        generation_prompt=codec.template.generation_prompt,
    )


def append_only_ids(
    codec: ChatCodec, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[int]:
    """Ids of a tool conversation grown as an episode grows it: prompt, turn, tool responses, turn, ...

    ``messages`` up to the first assistant message are the prompt; then assistant messages (with tool calls)
    and their tool messages alternate, ending in tool messages.
    """
    first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
    ids = codec.encode_prompt(messages[:first], tools)
    index = first
    opened = "\n</think>\n\n" if codec.template.opens_thinking else ""
    while index < len(messages):
        turn = messages[index]
        text = turn["content"] or ""
        parts = [Part(opened, trusted=True), Part(text, trusted=False)]
        for number, call in enumerate(turn["tool_calls"]):
            if text or number:
                parts.append(Part("\n", trusted=True))
            parts.extend(hermes_call(call["function"]["name"], call["function"]["arguments"]))
        index += 1
        responses = []
        while index < len(messages) and messages[index]["role"] == "tool":
            responses.append([Part(messages[index]["content"], trusted=False)])
            index += 1
        parts.append(Part(IM_END, trusted=True))
        for more in (parts, codec.tool_response_parts(responses)):
            ids.extend(i for part in codec.encode_parts(more) for i in part)
    return ids


def _full_ids(
    codec: ChatCodec, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[int]:
    if not codec.template.renders_tools:  # the template has no form of its own to compare with
        return codec.encode_prompt(messages, tools)
    ids = codec.tokenizer.apply_chat_template(
        list(messages),
        tools=list(tools),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **codec.template.kwargs,
    )
    return list(ids)


def _require_same_but_thinking(appended: str, full: str) -> None:
    ours, theirs = (re.sub(r"<think>.*?</think>\n*", "", text, flags=re.S) for text in (appended, full))
    if ours == theirs:
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    raise TemplateError(
        "the chat template does not continue a tool conversation as Qwen's does: at character "
        f"{at} the episode writes {ours[max(0, at - 30) : at + 40]!r}, the template "
        f"{theirs[max(0, at - 30) : at + 40]!r}; use a model of the Qwen family or SmolLM2, or give the "
        "tokenizer that family's chat template"
    )
