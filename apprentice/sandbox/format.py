"""The exact text of a cell's result that a model sees.

The parts below, each on a new line, joined without blank lines:

1. the output as captured: standard output, standard error and the displayed value in the order written, each
   change of stream on a new line, trailing newlines removed;
2. the traceback (at most its first 4 and last 6 lines), or the message of ``sys.exit("message")``;
3. parts 1 and 2 together are cut to ``max_chars``: the first half and the last half, with
   ``[... N characters left out ...]`` on a line between them;
4. a note on how the cell ended, unless it ended well or by an exception:

   ===============  ==========================================================
   outcome          note
   ===============  ==========================================================
   timeout_wall     ``[stopped: longer than 10 s]``
   timeout_cpu      ``[stopped: more than 5 s of CPU time]``
   output_limit     ``[stopped: more than 64 KiB of output]``
   memory_limit     ``[memory limit of 512 MiB reached]``
   killed_oom       ``[killed: out of memory]``
   exit             ``[exit code 3]``, nothing for exit code 0
   early_exit       ``[process ended early with exit code 0]``
   crash            ``[crashed: SIGSEGV]``
   ===============  ==========================================================

5. where all of that is empty: ``[no output]``.
"""

from __future__ import annotations

from apprentice.sandbox.outcome import CellResult, Outcome

__all__ = ["NO_OUTPUT", "cut", "model_text", "split_streams"]

NO_OUTPUT = "[no output]"


def split_streams(raw: bytes, nonce: str) -> tuple[str, str, str]:
    """Raw captured bytes as ``(shown, stdout, stderr)``; see :func:`apprentice.sandbox.cell.mark`.

    ``shown`` has all streams in order, each change of stream on a new line. Bytes that are not UTF-8 become
    backslash escapes.
    """
    marker = b"\0" + nonce.encode()
    streams: dict[str, list[bytes]] = {"o": [], "e": [], "r": []}
    shown = bytearray()
    current, last = "o", ""
    for i, part in enumerate(raw.split(marker)):
        if i > 0:
            current, part = part[:1].decode("latin-1"), part[1:]
        if not part:
            continue
        if last and current != last and not shown.endswith(b"\n"):
            shown += b"\n"
        streams.get(current, streams["o"]).append(part)
        shown += part
        last = current
    text, stdout, stderr = (
        b.decode("utf-8", "backslashreplace") for b in (bytes(shown), *(b"".join(streams[s]) for s in "oe"))
    )
    return text, stdout, stderr


def cut(text: str, max_chars: int) -> str:
    """The first and last ``max_chars / 2`` characters, with a note of how many were left out between them."""
    if len(text) <= max_chars:
        return text
    tail = max_chars // 2
    head = max_chars - tail
    note = f"[... {len(text) - max_chars} characters left out ...]"
    return f"{text[:head]}\n{note}\n{text[len(text) - tail :]}"


def _note(result: CellResult) -> str:
    limits = result.limits
    match result.outcome:
        case Outcome.TIMEOUT_WALL:
            return f"[stopped: longer than {limits.wall_s:g} s]"
        case Outcome.TIMEOUT_CPU:
            return f"[stopped: more than {limits.cpu_s:g} s of CPU time]"
        case Outcome.OUTPUT_LIMIT:
            what = "a file" if result.detail == "file" else "output"
            size = limits.file_bytes if result.detail == "file" else limits.output_bytes
            return f"[stopped: more than {size // 1024} KiB of {what}]"
        case Outcome.MEMORY_LIMIT:
            return f"[memory limit of {limits.memory_bytes >> 20} MiB reached]"
        case Outcome.KILLED_OOM:
            return "[killed: out of memory]"
        case Outcome.EXIT if result.detail != "0":
            return f"[exit code {result.detail}]"
        case Outcome.EARLY_EXIT:
            return f"[process ended early with exit code {result.detail}]"
        case Outcome.CRASH:
            return f"[crashed: {result.detail}]"
        case _:
            return ""


def model_text(result: CellResult, max_chars: int = 4000) -> str:
    """What the model reads; specified above.

    Raises:
        ValueError: the outcome is the infrastructure's, which a model never reads.
    """
    if result.outcome.from_infrastructure:
        raise ValueError(f"outcome {result.outcome} is not the cell's: retry it, or leave the sample out")
    body = "\n".join(part for part in (result.output.rstrip("\n"), result.traceback) if part)
    parts = [cut(body, max_chars), _note(result)]
    return "\n".join(part for part in parts if part) or NO_OUTPUT
