"""Pictures on the pages of datasets: the files of a small made-up corpus, and its first example after reading."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import expound
from expound.data import READERS
from expound.errors import ExpoundError

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from corpora import CORPORA

SPEC_PARAMETERS = {"mlqe": "?pair=en-de", "xnli": "?language=sw"}
SIDES = {"text": "rationale", "text_pair": "rationale_pair"}


def draw_samples(folder: Path) -> dict[str, str]:
    """Return an HTML fragment per dataset, by id."""
    return {name: _sample(name, folder / name) for name in READERS.native}


def _sample(name: str, folder: Path) -> str:
    if name not in CORPORA:
        return _row(expound.load_data(name, "test", limit=1))
    folder.mkdir(parents=True)
    path = CORPORA[name](folder)
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return f"<p>Files: {', '.join(f'<code>{escape(file)}</code>' for file in files)}</p>" + _row(
        _first_split(f"{name}:{path}{SPEC_PARAMETERS.get(name, '')}")
    )


def _first_split(spec: str) -> Any:
    for split in ("train", "dev"):
        try:
            return expound.load_data(spec, split)
        except ExpoundError as error:
            last_error = error
    raise last_error


def _row(data: Any) -> str:
    """Return the first example as a table of its columns, with the rationale highlighted."""
    row = data[0]
    cells = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in _cells(row, data.features))
    return f"<p>The first example:</p><table>{cells}</table>"


def _cells(row: Mapping[str, Any], features: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if name in SIDES:
            yield name, _mark_rationale(value, row.get(SIDES[name]) or ())
        elif name == "label" and hasattr(features[name], "int2str"):
            yield name, f"{value} ({escape(features[name].int2str(value))})"
        elif name == "image":
            yield name, _picture(value)
        elif name != "answer" or value is not None:
            yield name, escape(str(value))


def _picture(image: Any) -> str:
    png = BytesIO()
    image.save(png, "PNG")
    return f'<img alt="The image" width="64" src="data:image/png;base64,{b64encode(png.getvalue()).decode()}">'


def _mark_rationale(text: str, spans: Sequence[Sequence[int]]) -> str:
    parts, at = [], 0
    for start, end in sorted(spans):
        parts += [escape(text[at:start]), f"<mark>{escape(text[start:end])}</mark>"]
        at = end
    return "".join([*parts, escape(text[at:])])
