"""Masks over tokens from flags over text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from apprentice.tokens import ChatCodec, Part

__all__ = ["encode_flags"]


def encode_flags(
    codec: ChatCodec, parts: Sequence[Part], *flags: Sequence[bool]
) -> tuple[npt.NDArray[np.int32], list[npt.NDArray[np.bool_]]]:
    """Encode parts; for each list of flags (one a part), the tokens with any character of a flagged part.

    Returns:
        ``[T]`` ids and, for each of ``flags``, a ``[T]`` mask.
    """
    ids = np.asarray([i for part in codec.encode_parts(parts) for i in part], np.int32)
    # A token's bytes are those of the text it stands for, so both sides are measured in bytes.
    sizes = [len(codec.representable(part.text).encode()) for part in parts]
    starts = np.cumsum([0, *(len(codec.token_bytes(int(i))) for i in ids)])
    assert starts[-1] == sum(sizes), "tokens and text differ in length"
    masks = []
    for flag in flags:
        flagged = np.repeat(np.asarray(flag, bool), sizes)
        masks.append(np.logical_or.reduceat(flagged, starts[:-1]) if len(ids) else np.zeros(0, bool))
    return ids, masks
