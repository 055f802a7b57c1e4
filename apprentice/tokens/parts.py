"""A piece of text and how far it is trusted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a text that will be tokenized together with its neighbours.

    ``trusted`` text was written by this project or by the chat template: control and added tokens in it are
    recognised. Untrusted text (problems, experts, tools, users) can never become one, whatever it says.
    ``hard`` forces a token boundary before the part; otherwise a token may straddle the boundary, as it does
    when the chat template is tokenized as a whole, and then belongs to the part in which it begins.
    """

    text: str
    trusted: bool
    hard: bool = False
