"""Text and token ids: one codec, in which text that others wrote can never become structure."""

from __future__ import annotations

from apprentice.tokens.check import TemplateReport, append_only_ids, check_template
from apprentice.tokens.codec import IM_END, IM_START, ChatCodec
from apprentice.tokens.incremental import IncrementalDecoder
from apprentice.tokens.parts import Part
from apprentice.tokens.template import ChatTemplate, hermes_call, tools_block

__all__ = [
    "IM_END",
    "IM_START",
    "ChatCodec",
    "ChatTemplate",
    "IncrementalDecoder",
    "Part",
    "TemplateReport",
    "append_only_ids",
    "check_template",
    "hermes_call",
    "tools_block",
]
