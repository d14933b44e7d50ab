"""Pages of figures of made-up runs: their texts, their errors, and their figures, which outlive the runs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from expound.cli import main
from expound.data.provenance import write_json
from expound.errors import ExpoundError
from expound_papers.runs import sources
from expound_papers.runs.run_cell import run_cell
from expound_papers.runs.store import Store, write_record
from expound_papers.study.loading import load_study
from expound_papers.tables.figures_file import export_figures, import_figures, merge_stores
from expound_papers.tables.page import fill_page, read_page_part
from expound_papers.tables.results import collect_results
from expound_papers.tables.tables import make_study_table

STUDY = """\
from expound_papers.study import Data, Model, Significance, Study, Training, register

@register
def study(study: Study) -> None:
    study.seeds = 3
    films, tiny = Data("films", "jsonl:FOLDER/films.jsonl", split="all"), Model("tiny", "tiny")
    data = Training("films", films, films)
    slow = study.train("slow", "baseline", data, tiny)
    runs = [slow, study.train("fast", "baseline", data, tiny, arguments={"weight_decay": 1})]
    runs.append(study.train("later", "fresh", data, tiny, explained_model=slow))
    explainers = {"ATT": "attention_last", "IxG": "input_x_gradient"}
    metrics = {"A-C": "aopc_comprehensiveness", "A-S": "aopc_sufficiency"}
    study.judge("all", runs, films, explainers, metrics, limits={"IxG": 5}, keep_attributions=True)
    study.compare("DIT", "all")
    study.table(
        "first", "", rows="recipe", columns="metric", metrics="accuracy", where={"dataset": "films"}, scale=100,
        decimals=1, significance=Significance("slow"),
    )
    how = {"columns": "metric", "decimals": 3}
    study.table("second", "Explained", rows=["recipe", "explainer"], metrics=["A-C", "A-S"], **how)
    study.table("alike", "", rows="recipe", columns="explainer", metrics="DIT")
    where = {"recipe": "slow"}
    study.table("sorted", "", rows="explainer", metrics="A-C", where=where, show="mean [95 %]", **how)
"""
WINS, GAIN = "{{one | fast minus slow | accuracy | wins}}", "{{one | fast minus slow | accuracy}}"
PART = """\
---
title: What came out
studies: {one: study.py}
---
{{facts}}

{{one:second}}

| # | claim | here | verdict |
| --- | --- | --- | --- |
| 1 | fast is better (.9 against .8) | WINS seeds, GAIN | **reproduced** |
| 2 | later, too | {{one | later minus slow | accuracy}} | **reproduced** |

ATT comes to {{one:second | slow / ATT | A-C | center}}, of {{one:second | slow / ATT | A-C | runs}} runs.
""".replace("WINS", WINS).replace("GAIN", GAIN)


@pytest.fixture
def study_folder(tmp_path):
    return make_study_folder(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Such a folder with its results, for tests that only read them."""
    folder = make_study_folder(tmp_path_factory.mktemp("finished"))
    return SimpleNamespace(folder=folder, results=results_of(folder))


def make_study_folder(folder):
    """The folder of a study in which two of three recipes have runs, with made-up figures in the files of real runs."""
    rows = [{"text": f"film number {i}", "label": "ab"[i % 2]} for i in range(8)]
    (folder / "films.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "study.py").write_text(STUDY.replace("FOLDER", str(folder)))
    (folder / "part.md").write_text(PART)
    found, store = load_study(folder / "study.py"), Store(folder / "runs")
    draw = np.random.default_rng(0)
    for run in found.runs:
        if run.recipe != "later":
            with store.workspace(run.cell) as space:
                write_figures(space.output, run, draw)
                write_record(space.output, run.cell, 1, seconds=2.0, cpu_seconds=1.0)
    return folder


def write_figures(folder, run, draw):
    if not run.dataset:
        write_json(folder / "metrics.json", {"accuracy": draw.random(), "cross_entropy": None, "note": "text"})
        write_json(folder / "history.json", {"history": [{"step": 1, "loss": draw.random()}]})
        (folder / "model.safetensors").write_bytes(draw.bytes(10_000))
        return
    better = run.recipe == "fast"
    right = draw.random(8) < (0.99 if better else 0.5)
    predicted = np.eye(2, dtype=np.float32)[np.where(right, np.arange(8) % 2, 1 - np.arange(8) % 2)]
    said = {"example": range(8), "predicted": list(predicted), "label": np.arange(8) % 2}
    pd.DataFrame(said).to_parquet(folder / "predictions.parquet", index=False)
    write_json(folder / "figures.json", {"accuracy": right.mean()})
    specs = list(run.explainers.values())
    examples = [0, 1, 2, 5, 7] if run.partly else range(8)
    frame = pd.DataFrame([(example, spec) for spec in specs for example in examples], columns=["example", "method"])
    values = {name: draw.random(len(frame)).astype(np.float32) for name in run.cell.config["metrics"]}
    values["aopc_sufficiency"][0] = np.nan
    results = frame.assign(**values, prediction="a", tokens=3, seconds=1 / 3, peak_memory=np.nan)
    results.to_parquet(folder / "results.parquet", index=False)
    frame.assign(metric="aopc_sufficiency", x=0.5, value=1.0).to_parquet(folder / "curves.parquet", index=False)
    size = len(frame)
    kept = {
        "token_scores": [[draw.random(4)] for _ in range(size)],
        "special": [[False] * 4] * size,
        "signed": [False] * size,
    }
    (folder / "attributions").mkdir()
    pd.DataFrame(kept).to_parquet(folder / "attributions" / "explanations.parquet", index=False)


def study_of(folder, runs="runs"):
    study = load_study(folder / "study.py", recorded=Store(folder / runs).read_sources("study-small"))
    assert study.name == "study-small"
    return study


def results_of(folder, runs="runs"):
    return {"one": collect_results(study_of(folder, runs), Store(folder / runs))}


def make_page(folder, text=PART, runs="runs"):
    (folder / "part.md").write_text(text)
    return fill_page(read_page_part(folder / "part.md"), results_of(folder, runs))


def fill_text(finished, text=PART):
    """The page of a text from results that were read before."""
    (finished.folder / "part.md").write_text(text)
    return fill_page(read_page_part(finished.folder / "part.md"), finished.results)


def test_a_page_says_what_its_tables_say_and_what_is_not_run(finished):
    text, (results,) = fill_text(finished), finished.results.values()
    table = make_study_table(results, "first")
    assert table.rows == ["slow", "fast"]
    gain = table.center[1, 0] - table.center[0, 0]
    by_seed = results.figures.query("metric == 'accuracy' and judgement == 'all'").pivot(
        index="seed", columns="recipe", values="value"
    )
    wins = int((by_seed["fast"] > by_seed["slow"]).sum())
    mark = "†" if table.marked[1, 0] else ""
    assert f"| {wins} of 3 seeds, +{gain:.1f}{mark} | **reproduced** |" in text
    assert "| later, too | not run | not tested (not run) |" in text
    second = make_study_table(results, "second")
    assert f"ATT comes to {second.center[0, 0]:.3f}, of 3 runs." in text
    assert "**Explained**" in text
    assert "| judged on | films 8, films 8 (some methods 5) |" in text
    assert "| finished | 18 of 27 runs; 18 s of one core |" in text
    assert "| seeds | 0, 1, 2 |" in text
    assert make_page(finished.folder) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GAIN, GAIN.replace("fast", "fats"), "11: unknown name in a row 'fats'. Did you mean 'fast'"),
        ("| accuracy | wins}}", "| accuracy | losses}}", "unknown field 'losses'"),
        ("{{one:second}}", "{{one:secnd}}", "unknown table 'secnd'. Did you mean 'second'"),
        ("{{one:second}}", "{{two}}", "unknown study of the page 'two'"),
        ("| later, too | {{", "| later, too | 3.5 {{", r"part.md:12: the figure 3\.5 was typed by hand"),
        ("| A-C | center}}", "}}", "expected NAME:TABLE"),
        ("title:", "titel:", "unknown key in the head of .*part.md 'titel'"),
        ("---\n", "", "is no page part"),
    ],
)  # fmt: skip
def test_what_no_run_said_is_an_error_with_its_line(finished, old, new, message):
    with pytest.raises(ExpoundError, match=message):
        fill_text(finished, PART.replace(old, new))


def test_a_difference_of_rows_that_were_trained_otherwise_is_refused(study_folder):
    study = study_folder / "study.py"
    study.write_text(study.read_text().replace('"weight_decay": 1', '"learning_rate": 1'))
    for run in load_study(study).runs:
        if run.recipe == "fast":
            with Store(study_folder / "runs").workspace(run.cell) as space:
                write_figures(space.output, run, np.random.default_rng(0))
                write_record(space.output, run.cell, 1, seconds=2.0, cpu_seconds=1.0)
    with pytest.raises(ExpoundError, match="fast minus slow: the trainings also differ in rate: say so"):
        make_page(study_folder)
    text = make_page(study_folder, PART.replace(".9 against .8", ".9 against .8, at another rate"))
    (results,) = results_of(study_folder).values()
    table = make_study_table(results, "first")
    assert not table.marked.any()
    assert table.note.endswith(
        "(paired permutation over examples, 0 tests, Holm correction, p < 0.05). Not tested: fast (other rate)."
    )
    assert "; rate 1, " in text


def test_differences_have_a_spread(finished):
    (results,) = finished.results.values()
    frame = results.figures.query("metric == 'accuracy' and judgement == 'all'")
    pairs = 100 * frame.pivot(index="seed", columns="recipe", values="value").eval("fast - slow")
    text = fill_text(finished, PART.replace("| accuracy | wins}}", "| accuracy | spread}}"))
    assert f"+{pairs.mean():.1f} ± {pairs.std():.1f} seeds" in text
    assert re.search(r"ATT comes to 0\.\d{3}, of", text)
    everything = fill_text(finished, PART.replace("{{one:second}}", "{{one}}"))
    assert len(re.findall("^Mean and standard deviation over seeds", everything, re.MULTILINE)) == 3


def test_differences_in_a_sorted_table_are_of_the_named_rows(finished):
    centers = "{{one:sorted | ATT | A-C | center}} {{one:sorted | IxG | A-C | center}}"
    part = f"---\ntitle: T\nstudies: {{one: study.py}}\n---\n{centers} {{{{one:sorted | ATT minus IxG | A-C}}}}"
    att, other, difference = fill_text(finished, part).split("\n")[-1].replace("−", "-").split()
    assert float(difference) == pytest.approx(float(att) - float(other), abs=0.002)
    assert float(difference)


CLAIMS = """\
---
title: Claims
studies: {one: study.py}
---
| # | claim | here | n × seeds | verdict |
| --- | --- | --- | --- | --- |
| 1 | fast is right more often | {{one | fast minus slow | accuracy | > 0}} | | |
| 2 | it is right less often | {{one | fast minus slow | accuracy | < 0}} | | |
| 3 | it is as right | {{one | fast minus slow | accuracy | within 5}} | | |
| 4 | ATT is better | {{one:second | slow / ATT minus slow / IxG | A-C | > 0}} | | |
| 5 | it is like that of other seeds | {{one:alike | fast minus slow | ATT | > 0}} | | |
| 8 | ATT comes to less than 2 | {{one:second | slow / ATT | A-C | < 2}} | | |
| 6 | later is better | {{one | later minus slow | accuracy | > 0}} | | |
| 7 | people prefer it | | | not tested |
"""


def test_verdicts_on_claims_are_computed_from_their_intervals(finished):
    lines = {line.split(" | ")[0].strip("| "): line for line in fill_text(finished, CLAIMS).split("\n") if "|" in line}
    (results,) = finished.results.values()
    by_seed = results.figures.query("metric == 'accuracy' and judgement == 'all'")
    pairs = 100 * by_seed.pivot(index="seed", columns="recipe", values="value").eval("fast - slow").to_numpy()
    rights = []
    for run in results.study.runs:
        if run.judgement == "all" and run.recipe != "later" and not run.partly:
            frame = results.read_predictions(run)
            right = np.stack(frame["predicted"]).argmax(1) == frame["label"]
            rights.append(right.to_numpy() * (100.0 if run.recipe == "fast" else -100.0))
    of_examples = np.sum(rights, 0) / 3
    margin = np.hypot(4.302653 * pairs.std(ddof=1) / 3**0.5, 1.959964 * of_examples.std(ddof=1) / 8**0.5)
    low, high = (f"{each:+.1f}".replace("-", "−") for each in (pairs.mean() - margin, pairs.mean() + margin))
    verdict = "**reproduced**" if pairs.mean() > margin else f"**undecided** (detectable: {1.4294 * margin:.2g})"
    assert lines["1"].endswith(f"| +{pairs.mean():.1f} [{low}, {high}] | 8 × 3 | {verdict} |")
    assert lines["2"].endswith("| **contradicted** |" if pairs.mean() > margin else f"| {verdict} |")
    assert "(claimed within 5)" in lines["3"]
    assert "| 5 × 3 |" in lines["4"]
    assert "| 8 × 3 ‡ |" in lines["5"]
    judged = [results.read_examples(run) for run in results.find_runs(recipe="slow") if "ATT" in run.explainers]
    values = np.stack([each[each["explainer"] == "ATT"]["A-C"].to_numpy() for each in judged])
    over_seeds, over_examples = values.mean(1).std(ddof=1) / 3**0.5, values.mean(0).std(ddof=1) / 8**0.5
    margin = np.hypot(4.302653 * over_seeds, 1.959964 * over_examples)
    bounds = f"[{values.mean() - margin:.3f}, {values.mean() + margin:.3f}]"
    assert f" {values.mean():.3f} {bounds} (claimed < 2) | 8 × 3 | " in lines["8"]
    assert lines["6"].endswith("| not run | | not tested (not run) |")
    assert lines["7"].endswith("| | | not tested |")


def test_a_single_run_meets_every_seed_of_the_other_row_only_if_no_other_is_planned(study_folder):
    study = study_folder / "study.py"
    for run in load_study(study).runs:
        if run.recipe == "fast" and run.seed:
            shutil.rmtree(Store(study_folder / "runs").cell_folder(run.cell.key))
    claim = "| 1 | fast is right more often |"
    unfinished = next(line for line in make_page(study_folder, CLAIMS).split("\n") if line.startswith(claim))
    assert "| 8 × 1 | **undecided**" in unfinished, "the interval of one pair lacks the spread over seeds"
    study.write_text(study.read_text().replace('"weight_decay": 1}', '"weight_decay": 1}, seeds=[0]'))
    by_design = next(line for line in make_page(study_folder, CLAIMS).split("\n") if line.startswith(claim))
    assert "| 8 × 3 |" in by_design


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| | |\n| 2", "| | reproduced |\n| 2", r"part.md:7: the verdict 'reproduced' was typed by hand"),
        ("| not tested |", "| reproduced |", r"part.md:14: a claim without a condition has the verdict 'not tested'"),
    ],
)
def test_verdicts_that_were_typed_are_refused(finished, old, new, message):
    with pytest.raises(ExpoundError, match=message):
        fill_text(finished, CLAIMS.replace(old, new))


def test_exported_figures_make_the_same_page_where_neither_data_nor_runs_are(study_folder):
    text, figures = make_page(study_folder, PART + "\n{{one}}\n"), study_folder / "figures.parquet"
    assert export_figures([study_of(study_folder)], Store(study_folder / "runs"), figures) == 18
    again = figures.read_bytes()
    export_figures([study_of(study_folder)], Store(study_folder / "runs"), figures)
    assert figures.read_bytes() == again
    assert len(again) < 60_000
    assert "attributions" not in set(pd.read_parquet(figures)["part"])
    (study_folder / "films.jsonl").unlink()
    sources._find_dataset_address.cache_clear()
    assert import_figures(figures, Store(study_folder / "elsewhere")) == 18
    assert import_figures(figures, Store(study_folder / "elsewhere")) == 0
    assert make_page(study_folder, PART + "\n{{one}}\n", "elsewhere") == text
    export_figures(
        [study_of(study_folder, "elsewhere")],
        Store(study_folder / "elsewhere"),
        study_folder / "third.parquet",
    )
    assert (study_folder / "third.parquet").read_bytes() == again
    with pytest.raises(ExpoundError, match="holds no figures of runs"):
        import_figures(study_folder / "part.md", Store(study_folder / "elsewhere"))


def test_figures_belong_to_their_examples_in_whatever_order_the_rows_are(study_folder):
    figures, shuffled = study_folder / "figures.parquet", study_folder / "shuffled.parquet"
    export_figures([study_of(study_folder)], Store(study_folder / "runs"), figures)
    pd.read_parquet(figures).sample(frac=1, random_state=0).to_parquet(shuffled)
    for path in (figures, shuffled):
        import_figures(path, Store(study_folder / path.stem))
    paths = sorted((study_folder / "figures" / "cells").glob("*/results.parquet"))
    assert paths
    for path in paths:
        wanted = pd.read_parquet(path).sort_values(["example", "method"], ignore_index=True)
        found = pd.read_parquet(study_folder / "shuffled" / path.relative_to(study_folder / "figures"))
        found = found.sort_values(["example", "method"], ignore_index=True)
        pd.testing.assert_frame_equal(found[wanted.columns], wanted)
        # Times lose their last digits.
        assert (wanted["seconds"] != 1 / 3).all()
        np.testing.assert_allclose(wanted["seconds"], 1 / 3, rtol=1.6e-2)
    # A training that was resumed after its last step writes its figures in another order.
    wanted = results_of(study_folder)["one"].figures
    for path in (study_folder / "runs" / "cells").glob("*/metrics.json"):
        write_json(path, dict(reversed(json.loads(path.read_text()).items())))
    pd.testing.assert_frame_equal(results_of(study_folder)["one"].figures, wanted)


def test_only_missing_runs_are_left_and_what_they_need_but_of_its_figures(study_folder):
    store, other_store = Store(study_folder / "runs"), Store(study_folder / "elsewhere")
    found = study_of(study_folder)
    export_figures([found], store, study_folder / "figures.parquet")
    import_figures(study_folder / "figures.parquet", other_store)
    of = {run.cell.key: (run.recipe, bool(run.dataset)) for run in found.runs}
    assert {of[key] for key in store.list_unfinished(found.cells)} == {("later", False), ("later", True)}
    left = other_store.list_unfinished(found.cells)
    assert {of[key] for key in left} == {("slow", False), ("later", False), ("later", True)}
    assert len(left) == 3 + 3 + 6
    first = next(run.cell for run in found.runs if run.recipe == "slow" and not run.dataset)
    with pytest.raises(ExpoundError, match="is not finished"):
        other_store.require_folder(first.key)
    assert merge_stores(store, other_store) == 18
    assert other_store.list_unfinished(found.cells) == store.list_unfinished(found.cells)
    assert (other_store.require_folder(first.key) / "model.safetensors").exists()
    assert merge_stores(store, other_store) == 0


def test_a_run_done_again_takes_the_place_of_its_figures(study_folder):
    other_store = Store(study_folder / "elsewhere")
    found = study_of(study_folder)
    export_figures([found], Store(study_folder / "runs"), study_folder / "figures.parquet")
    import_figures(study_folder / "figures.parquet", other_store)
    cell = next(run.cell for run in found.runs if run.recipe == "slow" and not run.dataset)
    assert other_store.is_done(cell.key)
    assert not other_store.is_complete(cell.key)

    def fail(*_):
        raise OSError("cut off")

    with pytest.raises(OSError, match="cut off"):
        run_cell(replace(cell, run=fail), other_store.root)
    assert other_store.is_done(cell.key), "figures stay until there is a finished run"
    assert run_cell(cell, other_store.root)
    assert other_store.is_complete(cell.key)


def test_imported_runs_are_not_compared_with_later_ones_until_they_are_there_themselves(study_folder):
    store, other_store, text = (
        Store(study_folder / "runs"),
        Store(study_folder / "elsewhere"),
        PART + "\n{{one:alike}}\n",
    )
    found = study_of(study_folder)
    late = next(run.cell.key for run in found.runs if run.recipe == "slow" and run.dataset)
    store.cell_folder(late).rename(study_folder / "late")
    export_figures([found], store, study_folder / "figures.parquet")
    (study_folder / "late").rename(store.cell_folder(late))
    import_figures(study_folder / "figures.parquet", other_store)
    shutil.copytree(store.cell_folder(late), other_store.cell_folder(late))
    table = make_page(study_folder, text, "elsewhere").split("| recipe | ATT | IxG |")[1]
    assert "| slow | – | **" in table
    assert "| fast | –" not in table
    assert merge_stores(store, other_store) == 17
    assert make_page(study_folder, text, "elsewhere") == make_page(study_folder, text)


def test_pages_from_the_command_line(study_folder, capsys):
    runs = ["--output-dir", str(study_folder / "runs")]
    part, output = str(study_folder / "part.md"), study_folder / "docs"
    assert main(["study", "page", part, *runs, "--output", str(output)]) == 0
    text = (output / "part.md").read_text()
    assert text.startswith("# What came out\n<!-- Made by `expound study page part.md`")
    assert main(["study", "export", part, *runs]) == 0
    shutil.rmtree(study_folder / "runs")
    assert main(["study", "page", part, *runs, "--output", str(study_folder / "none.md")]) == 0
    assert (
        "| 1 | fast is better (.9 against .8) | not run seeds, not run | not tested (not run) |"
        in (study_folder / "none.md").read_text()
    )
    assert main(["study", "import", str(study_folder / "part.parquet"), *runs]) == 0
    capsys.readouterr()
    assert main(["study", "page", part, *runs]) == 0
    assert capsys.readouterr().out == text
    assert main(["study", "page", str(study_folder / "study.py"), *runs]) == 0
    assert "**Explained**" in capsys.readouterr().out
    assert main(["study", "export", part, "--output-dir", str(study_folder / "empty")]) == 2
    assert "no run of these studies is finished" in capsys.readouterr().err
    assert main(["study", "page", str(Path(part).with_name("gone.md")), *runs]) == 2
