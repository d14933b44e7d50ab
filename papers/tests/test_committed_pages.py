"""Each page of results follows from its committed figures, on a machine without data and models.

A page is rebuilt to the byte. Figures and intervals drawn from it are also computed with pandas alone: the library
only says which runs a cell is made of.
"""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

from expound_papers.cli.opening import load_page_parts, open_store
from expound_papers.study.parts import Place
from expound_papers.tables.layout import format_entry, lay_out_table
from expound_papers.tables.page import fill_page

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "papers" / "pages").glob("*.parquet"))
DRAWN = 3
CLAIM = re.compile(r"\{\{([^|{}]+)\|([^|{}]+)\|([^|{}]+)\|\s*[<>w][^|{}]*\}\}")
RUN = ["training", "model", "recipe", "seed"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=PAGES)
def page(request, tmp_path_factory):
    name, absent = request.param, tmp_path_factory.getbasetemp() / "absent"
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("EXPOUND_DATA", "EXPOUND_BACKBONE"):
            patch.setenv(variable, str(absent))
        committed = ROOT / "papers" / "pages" / f"{name}.parquet"
        store = open_store(committed)
        ((part, results),) = load_page_parts([committed.with_suffix(".md")], store)
        file = ROOT / "papers" / "results" / f"{name}.md"
        yield SimpleNamespace(name=name, part=part, results=results, file=file, frame=pd.read_parquet(committed))


def test_a_page_is_made_from_its_committed_figures(page):
    assert fill_page(page.part, page.results).encode() == page.file.read_bytes()


def test_cells_and_an_interval_of_a_page_are_computed_with_pandas(page):
    part, results, text = page.part, page.results, page.file.read_text(encoding="utf-8")
    tables, by_key = {}, dict(list(page.frame.groupby("key")))
    for study, found in results.items():
        for title in found.study.tables:
            tables[study, title] = StoredTable(by_key, found, title)
    cells = [(table, cell) for table in tables.values() if table.is_on(text) for cell in table.cells]
    draw = random.Random(page.name)
    for table, cell in draw.sample(cells, DRAWN):
        shown = table.read_shown(text, cell)
        computed = [number for number in summarize(table.by_seed(cell), table.part.show) if np.isfinite(number)]
        printed = find_numbers(shown)
        # The interval over examples of "mean [95 %]" is drawn at random, and its ends are not computed here.
        assert len(printed) == len(computed) or table.part.show == "mean [95 %]"
        for number, each in zip(computed, printed, strict=False):
            digits = len(each.partition(".")[2])
            assert float(each) == pytest.approx(number, abs=0.5 * 10**-digits + 1e-9), shown

    claims = []
    for address, rows, column in (map(strip_marks, found) for found in CLAIM.findall(part.text)):
        study, _, title = address.partition(":")
        # The claim on a correlation is about a figure.
        table = tables.get((study, title or next(iter(results[study].study.tables))))
        cells = [(row, column) for row in rows.split(" minus ")]
        if table and table.cells.keys() >= set(cells):
            claims.append((table, cells))
    # One claim about a difference, and one about a single row where there is one.
    for n_rows in (1, 2):
        if found := [claim for claim in claims if len(claim[1]) == n_rows]:
            table, cells = draw.choice(found)
            values = [table.by_seed(cell) for cell in cells]
            other, sign = (values[1], "+") if n_rows == 2 else (0 * values[0], "")
            center, low, high = estimate_difference(values[0], other)
            forms = [
                f"{center:{sign}.{n}f} [{low:{sign}.{n}f}, {high:{sign}.{n}f}]".replace("-", "−") for n in range(1, 5)
            ]
            assert any(form in text for form in forms), forms


def test_marked_rows_were_trained_like_the_row_they_differ_from(page):
    text, records = page.file.read_text(encoding="utf-8"), page.frame[page.frame["part"] == "cell.json"]
    configs = {key: json.loads(record)["config"] for key, record in zip(records["key"], records["text"], strict=True)}
    for found in page.results.values():
        for title, part in found.study.tables.items():
            layout, against = lay_out_table(found, title), part.significance and part.significance.against
            if not against or part.rows != ["recipe"] or text.count(f"**{part.caption or title}**") != 1:
                continue
            settings, seeds = {}, {}
            for (row, column), lines in layout.lines.items():
                line = next(iter(lines.values()))
                place = Place(line["training"], line["model"], line["seed"])
                cell = found.study.recipes[row[0]].cells.get(place)
                settings[row[0], column] = cell and read_settings(configs[cell.key])
                seeds[row[0], column] = set(lines)
            lines = text.split(f"**{part.caption or title}**\n\n", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
            for line in lines:
                name, *cells = line.strip("|").split(" | ")
                for cell, column in zip(cells, layout.columns, strict=True):
                    if "†" in cell:
                        assert settings[strip_marks(name), column] == settings[against, column], (title, line)
                        # Tests pair the runs of a seed.
                        assert seeds[strip_marks(name), column] & seeds[against, column], (title, line)


def read_settings(config):
    """The settings of a training that two rows have to share: its data, model, rate, length and batches."""
    arguments, steps = config["arguments"], config["arguments"].get("max_steps")
    length = (steps, None) if steps else (None, arguments.get("num_train_epochs"))
    rest = arguments.get("learning_rate"), arguments.get("per_device_train_batch_size")
    return config["train"], "trained" in config["model"], *length, *rest


@pytest.mark.parametrize("page", ["smat"], indirect=True)
def test_intervals_over_five_and_ten_seeds_are_computed_with_pandas(page):
    stored = page.frame[(page.frame["part"] == "figures.json") & (page.frame["name"] == "simulatability")]
    values = stored.set_index("key")["value"] * 100
    by_recipe = []
    for recipe in ("Attention (SMaT)", "Attention (all layers)"):
        runs = page.results["seeds"].find_runs(recipe=recipe, judgement="simulatability")
        by_recipe.append(pd.Series({run.seed: values[run.cell.key] for run in runs}))
    ten = by_recipe[0] - by_recipe[1]
    text = " ".join(page.file.read_text(encoding="utf-8").split())
    assert f"({ten.loc[1:5].mean():+.2f} {format_interval(ten.loc[1:5], 0.95)}: undecided)" in text
    # Two looks at the data, so 97.5 % each.
    assert f"{ten.mean():+.2f} points" in text
    assert f"the difference is within {format_interval(ten, 0.975)}." in text


@pytest.mark.parametrize("page", ["aml"], indirect=True)
def test_refined_masks_are_above_noisy_maps_on_snli_after_two_looks_at_the_data(page):
    table = StoredTable(dict(list(page.frame.groupby("key"))), page.results["seeds"], "seeds")
    one, other = (table.by_seed((row, "SNLI / A-C")) for row in ("AML / fAML", "F / best of 11 noisy DCMP"))
    assert estimate_difference(one, other, level=0.975)[1] > 0
    assert estimate_difference(one[[42, 43, 44]], other[[42, 43, 44]])[1] < 0


@pytest.mark.parametrize("page", ["ivra"], indirect=True)
def test_the_loss_of_consistency_and_its_gradient_almost_vanish(page):
    keys = {run.cell.key for run in page.results["alike"].study.runs if run.recipe == "CONS" and not run.dataset}
    stored = page.frame[(page.frame["part"] == "history.json") & page.frame["key"].isin(keys)]
    assert len(stored) == len(keys) == 6
    for text in stored["text"]:
        steps = [entry for entry in json.loads(text)["history"] if "consistency_gradient_norm" in entry]
        assert steps[-1]["consistency"] < steps[0]["consistency"] / 10
        assert steps[-1]["consistency_gradient_norm"] < steps[0]["consistency_gradient_norm"] / 4


def format_interval(values, level):
    """Student's t interval of the mean."""
    margin = t.ppf((1 + level) / 2, len(values) - 1) * values.std() / len(values) ** 0.5
    return f"[{values.mean() - margin:+.2f}, {values.mean() + margin:+.2f}]".replace("-", "−")


class StoredTable:
    """A table of a study with the runs of its cells: those whose figures of single examples are stored."""

    def __init__(self, by_key, results, title):
        layout = lay_out_table(results, title)
        self.by_key, self.results, self.part = by_key, results, layout.part
        self.title, self.cells = self.part.caption or title, {}
        declared, figures = results.study.metrics, layout.figures
        if self.part.over or self.part.gain:
            return
        # A run's figure may be in several judgements.
        fields, n_rows = [*self.part.rows, *self.part.columns], len(self.part.rows)
        lines = figures.drop_duplicates([*fields, *RUN])
        stored = lines["metric"].isin(declared) & (lines["explainer"] != "")
        by_entry = {}
        for line, is_stored in zip(lines.to_dict("records"), stored, strict=True):
            by_entry.setdefault(tuple(line[field] for field in fields), []).append((line, is_stored))
        for entry, found in by_entry.items():
            if all(is_stored for _, is_stored in found):
                names = (
                    format_entry(results, self.part, self.part.rows, entry[:n_rows]),
                    format_entry(results, self.part, self.part.columns, entry[n_rows:]),
                )
                self.cells[tuple(map(strip_marks, names))] = [line for line, _ in found]

    def is_on(self, text):
        return text.count(f"**{self.title}**") == 1

    def by_seed(self, cell):
        """The stored values of a cell, a row per example and a column per seed."""
        columns = {}
        for line in self.cells[cell]:
            place = {name: line[name] for name in (*RUN, "dataset", "judgement")}
            (run,) = [run for run in self.results.find_runs(**place) if line["explainer"] in run.explainers]
            stored = self.by_key[run.cell.key]
            stored = stored[stored["part"] == "results.parquet"]
            stored = stored[stored["method"] == run.explainers[line["explainer"]]]
            stored = stored[stored["name"] == self.results.study.metrics[line["metric"]]]
            columns[line["seed"]] = stored.set_index("example")["value"] * self.part.scale
        return pd.DataFrame(columns)

    def read_shown(self, text, cell):
        """The content of a cell on a page with this text."""
        lines = text.split(f"**{self.title}**\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
        heads, *rows = [[strip_marks(each) for each in line.strip("|").split(" | ")] for line in lines]
        (row,) = [row for row in rows if row[0] == cell[0]]
        return row[heads.index(cell[1])]


def strip_marks(text):
    return re.sub(r"\*\*|</?u>|†| [↑↓](?=$| /)", "", text.strip())


def find_numbers(text):
    return re.findall(r"-?\d+(?:\.\d+)?", text.replace("−", "-"))


def summarize(values, form):
    """The numbers that a cell shows, of its values [examples, seeds]; of an interval over examples the centre alone."""
    if form == "mean [95 %]":
        return [values.mean(axis=1).mean()]
    means = values.mean().dropna()
    if form == "median [25–75]":
        return means.quantile([0.5, 0.25, 0.75]).tolist()
    if form == "mean" or len(means) == 1:
        return [means.mean()]
    return [means.mean(), means.std() / (len(means) ** 0.5 if form == "mean ± se" else 1)]


def average_without_each(values):
    """The mean of each column without each of its rows."""
    return (values.sum() - values.fillna(0)) / (values.count() - values.notna())


def estimate_difference(one, other, level=0.95):
    """The difference of two cells' values [examples, seeds] with its interval: over seeds, and over examples."""
    # The only run of a row is compared with each run of the other row; of several, those of a seed are compared.
    seeds = one.columns.intersection(other.columns)
    if 1 in (one.shape[1], other.shape[1]):
        seeds = max(one, other, key=lambda values: values.shape[1]).columns
    one, other = ({seed: each.get(seed, each.iloc[:, 0]) for seed in seeds} for each in (one, other))
    one, other = pd.DataFrame(one), pd.DataFrame(other)
    shared = one.index.intersection(other.index)
    one, other = one.loc[shared], other.loc[shared]
    by_seed, margins = one.mean() - other.mean(), []
    if len(by_seed) > 1:
        margins.append(t.ppf((1 + level) / 2, len(by_seed) - 1) * by_seed.std() / len(by_seed) ** 0.5)
    by_left_out = (average_without_each(one) - average_without_each(other)).mean(axis=1)
    spread = (len(shared) - 1) ** 0.5 * np.std(by_left_out)
    margin = float(np.linalg.norm([*margins, norm.ppf((1 + level) / 2) * spread]))
    return by_seed.mean(), by_seed.mean() - margin, by_seed.mean() + margin
