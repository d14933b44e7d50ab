"""Run concepts and tutorials, scripts with cells (`# %%`), as notebooks, and make pages with their outputs."""

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

DOCS = Path(__file__).parents[1]


def notebook(file: Path) -> Any:
    """Return the tutorial as a notebook without outputs."""
    book = jupytext.read(file)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


def execute(file: Path, folder: Path) -> float:
    """Run a tutorial, write its page to `folder/tutorials`, and return the seconds it took.

    Raises CellExecutionError if a cell fails.
    """
    start, book = time.monotonic(), notebook(file)
    work, out = folder / "work" / "tutorials", folder / "tutorials"
    for each in (work, out):
        each.mkdir(parents=True, exist_ok=True)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(work)}}).execute()
    page = {"source": digest(file), "page": markdown(book, file.stem)}
    (out / f"{file.stem}.json").write_text(json.dumps(page), encoding="utf-8")
    return time.monotonic() - start


def page(file: Path, folder: Path) -> str:
    """Return the tutorial's page, with outputs if exactly this text has been run."""
    saved = folder / "tutorials" / f"{file.stem}.json"
    if saved.exists():
        content = json.loads(saved.read_text(encoding="utf-8"))
        if content["source"] == digest(file):
            return str(content["page"])
    return markdown(notebook(file), file.stem)


def digest(file: Path) -> str:
    """Return the hash of the tutorial's text."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def markdown(book: Any, name: str) -> str:
    """Return cells and outputs as Markdown, without standard error."""
    parts = []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source.strip():
            parts.append(f"```python\n{cell.source}\n```")
            outputs = [_output(output) for output in cell.get("outputs", ())]
            parts += [output for output in outputs if output]
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
    """Yield the scripts of the concepts, then those of the tutorials in the order of their numbers."""
    yield from (*sorted(DOCS.glob("concepts/*.py")), *sorted(DOCS.glob("tutorials/*.py")))
