"""Settings of trainings that two rows of a table have to share before their difference is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from expound_papers.runs.store import Cell
from expound_papers.study.parts import Place
from expound_papers.tables.layout import Entry, Line, TableLayout
from expound_papers.tables.results import Results

WORDS = {
    "rate": ("rate",),
    "steps": ("step", "epoch"),
    "batch": ("batch",),
    "data": ("data", "sentences", "pairs", "examples"),
    "start": ("start",),
}
"""By setting: the words with which a sentence names it; one of them is enough."""


def find_training(results: Results, line: Line) -> Cell | None:
    """Return the training of the row that a figure belongs to; None if nothing was trained for it."""
    place = Place(str(line["training"]), str(line["model"]), int(line["seed"]))
    return results.study.recipes[str(line["recipe"])].cells.get(place)


def describe_training(cell: Cell) -> dict[str, Any]:
    """Return the settings of a training that are not its recipe's own."""
    arguments = cell.config["arguments"]
    steps, epochs = arguments.get("max_steps"), arguments.get("num_train_epochs")
    # A number of steps overrides the number of epochs.
    length = None
    if steps or epochs:
        length = f"{steps} steps" if steps else f"{epochs} epoch{'s' * (epochs != 1)}"
    return {
        "rate": arguments.get("learning_rate"),
        "steps": length,
        "batch": arguments.get("per_device_train_batch_size"),
        "data": cell.config["train"],
        "start": "trained" in cell.config["model"],
    }


def find_differences(
    results: Results, layout: TableLayout, rows: Sequence[Entry], column: Entry
) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the trainings of two rows differ, with their values.

    There are none if one row is not trained, or if one training starts from the other: then its further steps are what
    the rows are compared for. Rows that are called by their training data name these.
    """
    lines = [layout.lines.get((row, column), {}) for row in rows]
    if not all(lines):
        return {}
    cells = [find_training(results, next(iter(each.values()))) for each in lines]
    if cells[0] is None or cells[1] is None or cells[0].key in cells[1].needs or cells[1].key in cells[0].needs:
        return {}
    found = dict[str, tuple[Any, Any]]()
    one, other = describe_training(cells[0]), describe_training(cells[1])
    for setting, value in one.items():
        if value != other[setting]:
            found[setting] = (value, other[setting])
    if "training" in layout.part.rows:
        found.pop("data", None)
    return found


def list_unnamed(differences: Mapping[str, tuple[Any, Any]], sentence: str) -> list[str]:
    """Return the settings that a sentence does not name."""
    text = sentence.lower()
    return [setting for setting in differences if not any(word in text for word in WORDS[setting])]
