"""Run the commands of the README and of the first page, and write what they print into these pages.

A block of text below a block of commands shows some of the lines that these print. Each shown line is replaced by the
printed line that differs from it in numbers only. Commands of `make` and `pip` are not run, nor is what needs a model
from the hub; a chat model is a tiny random one.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"<?[-+−]?\d[\d.,]*")
WIDTH = "120"
"""Columns of the terminal; the first page shows lines that are wrapped."""


def update_pages(folder: Path) -> list[str]:
    """Run the pages' blocks in the folder, update the pages, and return the shown lines that were not printed."""
    sys.path.insert(0, str(ROOT / "tests"))
    from readme_blocks import small_chat_model

    os.environ["COLUMNS"] = WIDTH
    folder.mkdir(parents=True, exist_ok=True)
    small_chat_model(folder / "my-chat-model")
    missing = list[str]()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        updated = text
        with contextlib.chdir(folder):
            for shown, printed in run_blocks(text, page.name):
                fresh, unknown = replace_lines(shown, printed)
                updated = updated.replace(shown, fresh)
                missing += [f"{page.name} shows a line that its commands do not print: {line}" for line in unknown]
        if updated != text:
            page.write_text(updated, encoding="utf-8")
    return missing


def run_blocks(text: str, name: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Run a page's blocks in order, and yield each shown text with the lines that the block above it printed."""
    from readme_blocks import commands, run_command

    names: dict[str, object] = {"__name__": "readme"}
    printed: list[str] | None = None
    for language, content in BLOCK.findall(text):
        if language == "text":
            if printed is not None:
                yield content, printed
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            if language == "python":
                exec(compile(content, name, "exec"), names)  # noqa: S102  # pages of ours
            elif language == "sh":
                for words in commands(content):
                    run_command(words, name)
        # `make` is only rehearsed.
        printed = None if content.startswith("make ") else output.getvalue().splitlines()


def replace_lines(shown: str, printed: Sequence[str]) -> tuple[str, list[str]]:
    """Return the shown text with the numbers that were printed, and its lines that were not printed."""
    fresh, unknown, found = [], [], {_mask_numbers(line): line.rstrip() for line in printed}
    for line in shown.splitlines():
        key = _mask_numbers(line)
        if key not in found:
            unknown.append(line)
        fresh.append(found.get(key, line))
    return "\n".join(fresh) + "\n", unknown


def _mask_numbers(line: str) -> str:
    """Return a line without its numbers and the width of its columns, which depends on them."""
    return " ".join(NUMBER.sub("#", line).split())
