"""docs/papers.md lists for each recipe how it departs from the paper."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import families
from expound.cli import main
from expound.recipes import RECIPES

FILE = Path(__file__).parents[2] / "docs" / "papers.md"
HEAD = """# Papers

The recipes of `expound train`, by paper, and their differences to the paper. The same sentences are in
`expound train RECIPE --help` and in the record of each run (`expound_run.json`). Default values are for short runs on
small data; `--preset paper` gives the paper's. The studies of the papers' tables
are in [papers/](../papers/README.md), the results in [papers/results/](../papers/results/index.md).
"""


def index():
    """Return the text of the page, from the recipes."""
    made = sorted((factory() for factory in RECIPES.values()), key=lambda recipe: recipe.paper)
    parts = [HEAD]
    for paper, recipes in groupby((recipe for recipe in made if recipe.paper), key=lambda recipe: recipe.paper):
        parts.append(f"## {paper}\n")
        for recipe in recipes:
            lines = "".join(f"- {departure}\n" for departure in recipe.departures or ["No departure is known."])
            parts.append(f"`expound train {recipe.name}`\n\n{lines}")
    return "\n".join(parts)


def test_the_page_is_what_the_recipes_say():
    assert FILE.read_text(encoding="utf-8") == index()


def test_help_and_the_record_of_a_run_say_it_too(tmp_path, capsys):
    (departure, *_) = RECIPES["fresh"]().departures
    assert main(["train", "fresh", "--help"]) == 0
    assert departure in " ".join(capsys.readouterr().out.split())
    small = ["--data", "generated?size=24", "--device", "cpu", "--epochs", "1", "--quiet", "--config", "tiny"]
    assert main(["train", "fresh", *small, "--output-dir", str(tmp_path / "run")]) == 0
    record = json.loads((tmp_path / "run" / "expound_run.json").read_text())
    assert (record["recipe"], record["paper"]) == ("fresh", "Jain et al. 2020")
    assert departure in record["departures"]
    assert main(["train", "fresh", *small, "--output-dir", str(tmp_path / "run")]) == 0


def test_what_is_on_by_default_can_be_switched_off(tmp_path, capsys):
    families.tiny("bert", num_labels=2).save_pretrained(tmp_path / "start")
    families.tokenizer("bert").save_pretrained(tmp_path / "start")
    small = ["--data", "generated?size=24", "--device", "cpu", "--output-dir", str(tmp_path / "run")]
    start = ["--model", str(tmp_path / "start"), "--lora-rank", "2"]
    assert main(["train", "ivra", "--no-train-model", *start, *small]) == 2
    assert "adapters train the model" in capsys.readouterr().err


if __name__ == "__main__":
    FILE.write_text(index(), encoding="utf-8")
