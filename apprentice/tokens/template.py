"""The model's own chat template, rendered so that one can tell its text from the messages' text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from apprentice.errors import TemplateError
from apprentice.tokens.parts import Part

__all__ = ["ROLES", "ChatTemplate", "hermes_call", "tools_block"]

ROLES = ("system", "user", "assistant", "tool")

_GENERATION_PROMPT = "<|im_start|>assistant\n"

_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)


def tools_block(tools: Sequence[Mapping[str, Any]]) -> str:
    """The system text that declares tools (RIVET, Table 7), as Qwen's own template writes it."""
    return _TOOLS_HEAD + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools) + _TOOLS_TAIL


def hermes_call(name: str, arguments: Mapping[str, Any] | str) -> list[Part]:
    """One tool call as Qwen's template writes it: tags trusted, name and arguments untrusted."""
    dumped = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return [
        Part('<tool_call>\n{"name": "', trusted=True),
        Part(name, trusted=False),
        Part('", "arguments": ', trusted=True),
        Part(dumped, trusted=False),
        Part("}\n</tool_call>", trusted=True),
    ]


class ChatTemplate:
    """Renders conversations to :class:`Part` lists.

    Each text of a message is replaced by a placeholder before the template runs, and put back after: the
    template can neither read nor rewrite it, so what is a message's text is known to the character. Two
    consequences, both wanted: a user's ``</think>`` or ``<tool_response>`` does not steer the template, and
    an assistant's earlier thinking stays where it is (a template that would delete or trim it is reported by
    :func:`apprentice.tokens.check_template`).

    A template that does not know ``tools`` (SmolLM2's) gets the conversation in Qwen's convention: the tools
    block of Table 7 ends the system message (or is the system message), calls follow the assistant's text,
    and consecutive tool messages become one user turn of ``<tool_response>`` blocks.

    What a template adds by itself stays: without a system message SmolLM2's opens with "You are a helpful AI
    assistant named SmolLM, trained by Hugging Face" and Qwen2.5's with "You are Qwen, created by Alibaba
    Cloud. You are a helpful assistant." Qwen3's adds nothing. With ``tools``, SmolLM2's default is replaced
    by the tools block; Qwen2.5's is kept by its template. Give a system message to have no default.
    """

    def __init__(self, tokenizer: Any, kwargs: dict[str, Any], added: tuple[str, ...]) -> None:
        self.kwargs = kwargs
        self._tokenizer = tokenizer
        self._added = added
        if not getattr(tokenizer, "chat_template", None):
            raise TemplateError(
                "the tokenizer has no chat template: use an -Instruct model, or set tokenizer.chat_template "
                "to its family's ChatML template"
            )
        hello = [{"role": "user", "content": "x"}]
        without, with_prompt = (self.render(hello, None, prompt) for prompt in (False, True))
        self.generation_prompt = with_prompt[len(without) :]
        """What the template puts before an answer."""
        if not with_prompt.startswith(without) or not self.generation_prompt.startswith(_GENERATION_PROMPT):
            raise TemplateError(
                f"the chat template opens an answer with {self.generation_prompt!r}, not with "
                f"{_GENERATION_PROMPT!r}: the episode protocol needs a ChatML template"
            )
        self.opens_thinking = self.generation_prompt.rstrip().endswith("<think>")
        """Whether an answer begins inside of a ``<think>`` block (give it to ``parse_turn``)."""
        probe = {"type": "function", "function": {"name": "probe_of_tools", "parameters": {}}}
        self.renders_tools = "probe_of_tools" in self.render(hello, [probe], True)
        """Whether the template itself writes tools, calls and tool responses."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """The template's own output, texts and all. Not safe to tokenize: see :meth:`parts`."""
        return str(
            self._tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=[dict(t) for t in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self.kwargs,
            )
        )

    def parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> list[Part]:
        """The conversation as parts: template text trusted, message texts untrusted.

        ``messages`` are in the usual form (``role``, ``content``, ``tool_calls``, ``reasoning_content``);
        tool schemas are the operator's and trusted, and therefore may not contain control tokens.

        Raises:
            ValueError: a role or content is not of the form above.
            TemplateError: the template drops a text, or a tool schema contains a control token.
        """
        _check_messages(messages)
        self._check_tools(tools)
        texts = _Placeholders(f"{tools!r}{self._tokenizer.chat_template!r}{self.kwargs!r}")
        if self.renders_tools:
            prepared = [texts.hide(message) for message in messages]
        else:
            prepared, tools = [texts.hide(m) for m in _without_tools(messages, tools)], None
        rendered = self.render(prepared, tools, add_generation_prompt)
        return texts.reveal(rendered)

    def _check_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        dumped = json.dumps(list(tools or []), ensure_ascii=False)
        for text in self._added:
            if text in dumped:
                raise TemplateError(
                    f"a tool schema contains the control token {text}, which would break the system message: "
                    "reword the tool's name, description or expert names"
                )


class _Placeholders:
    """Stand-ins for texts. A quote in the middle shows whether the template wrote it as JSON."""

    def __init__(self, others: str) -> None:
        """``others``: every text that the rendering may contain apart from the hidden ones."""
        salt = 0
        while f"@@text{salt}:" in others:
            salt += 1
        self._prefix = f"@@text{salt}:"
        self._pattern = re.compile(re.escape(self._prefix) + r'(\d+)(\\*)"@@')
        self._texts: list[list[Part]] = []
        self._where: list[str] = []

    def hide(self, message: Mapping[str, Any]) -> dict[str, Any]:
        role = message["role"]
        hidden = {
            key: self._hide(value, f"{key} of a {role} message") if key != "role" else value
            for key, value in message.items()
            if key != "tool_calls"
        }
        if message.get("tool_calls"):
            hidden["tool_calls"] = [self._hide_call(call) for call in message["tool_calls"]]
        return hidden

    def _hide_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function", call)
        hidden = {
            "name": self._hide(function["name"], "name of a tool call"),
            "arguments": self._hide(function.get("arguments", {}), "arguments of a tool call"),
        }
        return {"type": "function", "function": hidden}

    def _hide(self, value: Any, where: str) -> Any:
        if isinstance(value, str) and value:
            return self._add([Part(value, trusted=False)], where)
        if isinstance(value, _Texts):
            return self._add(list(value), where)
        if isinstance(value, Mapping):
            return {self._hide(k, where): self._hide(v, where) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide(v, where) for v in value]
        return value

    def _add(self, parts: list[Part], where: str) -> str:
        self._texts.append(parts)
        self._where.append(where)
        return f'{self._prefix}{len(self._texts) - 1}"@@'

    def reveal(self, rendered: str) -> list[Part]:
        parts: list[Part] = []
        position, seen = 0, set()
        for match in self._pattern.finditer(rendered):
            index, escape = int(match.group(1)), match.group(2)
            if len(escape) > 1:
                raise TemplateError(f"the chat template quotes the {self._where[index]} more than once")
            parts.append(Part(rendered[position : match.start()], trusted=True))
            for part in self._texts[index]:
                text = json.dumps(part.text, ensure_ascii=False)[1:-1] if escape else part.text
                parts.append(Part(text, part.trusted))
            position = match.end()
            seen.add(index)
        parts.append(Part(rendered[position:], trusted=True))
        dropped = [where for index, where in enumerate(self._where) if index not in seen]
        if dropped or self._prefix in "".join(part.text for part in parts if part.trusted):
            what = f"drops the {dropped[0]}" if dropped else "rewrites a message's text"
            raise TemplateError(
                f"the chat template {what}: put it where the template writes it, or use the family's own "
                "template"
            )
        return [part for part in parts if part.text]


class _Texts(list[Part]):
    """A message content that consists of trusted and untrusted parts."""


def _without_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """The conversation in plain system, user and assistant turns, in Qwen's convention."""
    out: list[dict[str, Any]] = []
    rest = list(messages)
    if tools:
        block = Part(tools_block(tools), trusted=True)
        if rest and rest[0]["role"] == "system":
            given = rest.pop(0)["content"] or ""
            content = _Texts([Part(given, trusted=False), Part("\n\n", trusted=True), block])
        else:
            content = _Texts([block])
        out.append({"role": "system", "content": content})
    answers: _Texts | None = None
    for message in rest:
        if message["role"] == "tool":
            opening = "<tool_response>\n" if answers is None else "\n<tool_response>\n"
            if answers is None:
                answers = _Texts()
                out.append({"role": "user", "content": answers})
            answers.append(Part(opening, trusted=True))
            answers.append(Part(message["content"] or "", trusted=False))
            answers.append(Part("\n</tool_response>", trusted=True))
            continue
        answers = None
        if message.get("tool_calls"):
            text = message.get("content") or ""
            content = _Texts([Part(text, trusted=False)])
            for number, call in enumerate(message["tool_calls"]):
                function = call.get("function", call)
                if text or number:
                    content.append(Part("\n", trusted=True))
                content.extend(hermes_call(function["name"], function.get("arguments", {})))
            message = {"role": message["role"], "content": content}
        out.append({**message, "content": message.get("content") or ""})
    return out


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise ValueError("a conversation needs at least one message")
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            raise ValueError(f"message {index} has role {message.get('role')!r}; known roles are {ROLES}")
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            raise ValueError(
                f"content of message {index} is a {type(content).__name__}: give text (this project has no "
                "other modality)"
            )
