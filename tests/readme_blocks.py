"""Runs the blocks of a page in their order, in an empty folder: python tests/readme_blocks.py [PAGE].

Lines of `expound` run in this process, which reads the model once for all; `make` and `pip` lines are rehearsed
(`make -n`, the extras of pyproject.toml). EXPOUND_SCALE makes the demo smaller.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"\$'(.*?)'")
"""A word in which the shell reads \\n as a new line."""


class Block(NamedTuple):
    """A block: its language, its text, and the line it begins at."""

    language: str
    text: str
    line: int


def blocks(file: Path) -> list[Block]:
    """All blocks of a page that can be run, in order."""
    text = file.read_text(encoding="utf-8")
    return [Block(each[1], each[2], text[: each.start(2)].count("\n") + 1) for each in BLOCK.finditer(text)]


def commands(text: str) -> list[list[str]]:
    """The commands of a block of the shell, as words, comments left out."""
    lines = text.replace("\\\n", " ").splitlines()
    plain = (QUOTED.sub(lambda found: shlex.quote(found[1].encode().decode("unicode_escape")), line) for line in lines)
    return [words for line in plain if (words := shlex.split(line, comments=True))]


def run(file: Path, folder: Path, without: str | None = None) -> None:
    """Runs the page's blocks inside the folder; Python ones share their names. Raises for the first that fails.

    Blocks that import the package `without`, if it is given, are left out.
    """
    names: dict[str, object] = {"__name__": "readme"}
    with contextlib.chdir(folder):
        for block in blocks(file):
            sys.stderr.write(f"{file.name}:{block.line}\n")
            if without and f"import {without}" in block.text:
                continue
            if block.language == "python":
                exec(compile("\n" * (block.line - 1) + block.text, str(file), "exec"), names)
                continue
            for words in commands(block.text):
                run_command(words, f"{file.name}:{block.line}")


def run_command(words: list[str], place: str) -> None:
    """Runs one command; raises AssertionError if it fails or is not known here."""
    from expound.cli import main

    program, *rest = words
    if program == "expound":
        assert main(rest) == 0, f"{place}: {shlex.join(words)}"
    elif program == "echo":
        *said, into, file = rest
        assert into == ">", place
        Path(file).write_text(" ".join(said) + "\n", encoding="utf-8")
    elif program == "make":
        subprocess.run(["make", "-n", *rest], cwd=ROOT, check=True, capture_output=True)
    elif program in ("pip", "pytest", "cp", "cd"):
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        extras = re.findall(r"\[(.*?)\]", " ".join(rest))
        assert all(name in known for extra in extras for name in extra.split(",")), f"{place}: {shlex.join(words)}"
    else:
        raise AssertionError(f"{place}: nobody knows how to rehearse {shlex.join(words)}")


def small_chat_model(folder: Path) -> None:
    """Saves a tiny model that chats, which the README calls `my-chat-model`."""
    import chats

    model = chats.chatting()
    model.model.float().save_pretrained(folder)
    model.processing_class.save_pretrained(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    os.environ.setdefault("EXPOUND_SCALE", "0.05")
    with tempfile.TemporaryDirectory() as empty:
        small_chat_model(Path(empty) / "my-chat-model")
        run(Path(*sys.argv[1:2]).absolute() if sys.argv[1:] else ROOT / "README.md", Path(empty))
