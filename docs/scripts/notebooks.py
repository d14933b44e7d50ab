"""Tutorials are scripts with cells (`# %%`); here they run as notebooks, and become pages with what came out."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def notebook(file: Path) -> Any:
    """The tutorial as a notebook without outputs."""
    made = jupytext.read(file)
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return made


def execute(file: Path, folder: Path) -> float:
    """Runs a tutorial in `folder/work` and writes its page into `folder/tutorials`. Returns seconds.

    Raises CellExecutionError where a cell fails.
    """
    start, made = time.monotonic(), notebook(file)
    work, out = folder / "work", folder / "tutorials"
    for each in (work, out):
        each.mkdir(parents=True, exist_ok=True)
    NotebookClient(made, timeout=300, resources={"metadata": {"path": str(work)}}).execute()
    page = {"source": digest(file), "page": markdown(made, file.stem)}
    (out / f"{file.stem}.json").write_text(json.dumps(page), encoding="utf-8")
    return time.monotonic() - start


def page(file: Path, folder: Path) -> str:
    """The tutorial's page: with outputs where this text of it has been run, else without."""
    kept = folder / "tutorials" / f"{file.stem}.json"
    if kept.exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["source"] == digest(file):
            return str(found["page"])
    return markdown(notebook(file), file.stem)


def digest(file: Path) -> str:
    """Of the tutorial's text."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def markdown(made: Any, name: str) -> str:
    """Cells and outputs as Markdown; what a kernel writes to standard error is left out."""
    parts = []
    for cell in made.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            parts += [shown for each in cell.get("outputs", ()) if (shown := _output(each))]
    head, _, rest = "\n\n".join(parts).partition("\n\n")
    return f"{head}\n\n[Download as a notebook]({name}.ipynb){{ .md-button download }}\n\n{rest}\n"


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return "" if output.name == "stderr" else _text(output.text)
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="picture">{re.sub(chr(10) + "+", chr(10), data["text/html"])}</div>'
    if "image/png" in data:
        return f'<img alt="The figure that the cell draws" src="data:image/png;base64,{data["image/png"].strip()}">'
    return _text(data["text/plain"]) if "text/plain" in data else ""


def _text(text: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip()
    return f'<pre class="output">{escape(plain)}</pre>' if plain else ""


def tutorials() -> Iterator[Path]:
    """The scripts in the order of their numbers."""
    yield from sorted(TUTORIALS.glob("*.py"))
