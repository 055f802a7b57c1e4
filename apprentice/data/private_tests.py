"""Hidden tests of LiveCodeBench rows: JSON, or base64 of zlib of a pickle of JSON text.

The pickle comes from a data set that anybody may have written. It is read by an unpickler that knows no class
and no function at all, so that the worst a row can do is to be refused.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from typing import Any

from apprentice.errors import DataError

__all__ = ["decode_private_tests"]

_MAX_BYTES = 512 * 1024 * 1024  # unpacked; the largest known row has about 100 MB


class _PlainUnpickler(pickle.Unpickler):
    """Strings, numbers and containers only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("the pickle asks for a persistent object")


def decode_private_tests(text: str) -> list[dict[str, Any]]:
    """The tests in a row's ``private_test_cases`` (or ``public_test_cases``): input, output, testtype.

    Raises:
        DataError: it is neither form, unpacks to too much, or the pickle holds anything but plain text.
    """
    try:
        tests = json.loads(text)
    except ValueError:
        tests = _unpack(text)
    if not isinstance(tests, list) or not all(isinstance(test, dict) for test in tests):
        raise DataError(f"hidden tests: expected a list of objects, found {type(tests).__name__}")
    return tests


def _unpack(text: str) -> Any:
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise DataError(f"hidden tests: more than {_MAX_BYTES} bytes when unpacked")
        inner = _PlainUnpickler(io.BytesIO(data)).load()
        if not isinstance(inner, str):
            raise DataError(f"hidden tests: the pickle holds {type(inner).__name__} instead of text")
        return json.loads(inner)
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, ValueError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"hidden tests: not JSON and not packed JSON ({error})") from error
