"""Runs cells in a real IPython, each in a fork of one shell, and captures them as the sandbox does.

A program: a JSON list of cells on standard input; on standard output, as JSON, IPython's version and a list
of ``[shown, error]``. Only the capture is the sandbox's; parsing, execution and display are IPython's.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import IPython
import sympy  # noqa: F401  # before the forks, as a zygote has it
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type
from traitlets.config import Config

from apprentice.sandbox import cell
from apprentice.sandbox.format import split_streams

NONCE = "ipython"


class Hook(DisplayHook):
    """Writes the plain text of a value where the sandbox writes its repr."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, str], md_dict: Any = None) -> None:
        text = format_dict["text/plain"].encode("utf-8", "backslashreplace")
        os.write(1, cell.mark(NONCE, "r") + text + b"\n" + cell.mark(NONCE, "o"))


class Shell(InteractiveShell):
    """Keeps the last line of a traceback in place of printing it."""

    displayhook_class = Type(Hook)
    error = ""

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        self.error = traceback.format_exception_only(etype, evalue)[-1].rstrip("\n")


def run(shell: Shell, code: str) -> tuple[str, str]:
    """``(shown, error)`` of one cell."""
    output, into = os.pipe()
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(into, 1)
        os.dup2(into, 2)
        cell._open_streams(NONCE)
        try:
            shell.run_cell(code, store_history=True)  # what is quiet is read from the history
        finally:
            os.write(say, shell.error.encode())
            os._exit(0)
    os.close(into)
    os.close(say)
    with os.fdopen(output, "rb") as raw, os.fdopen(said, "rb") as error:
        shown, _, _ = split_streams(raw.read(), NONCE)
        last = error.read().decode()
    os.waitpid(pid, 0)
    return shown.rstrip("\n"), last


def main() -> None:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = Shell.instance(config=config)
    results = [run(shell, code) for code in json.load(sys.stdin)]
    json.dump({"version": IPython.__version__, "cells": results}, sys.stdout)


if __name__ == "__main__":
    main()
