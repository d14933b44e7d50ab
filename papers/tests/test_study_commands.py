"""`expound study` from the command line's point of view; the study files of the project are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from expound_papers.study.loading import load_study

from expound.cli import main

FOLDER = Path(__file__).parents[1] / "studies"
STUDIES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "papers")
GOOD = """\
datasets: {train: {spec: "generated?size=24", split: train}, dev: {spec: "generated?size=24", split: dev}}
training: {films: {train: train, dev: dev}}
models: {tiny: {source: tiny}}
recipes: {plain: {recipe: baseline}}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("tiny}}", "tiny}", 4, "no YAML"),
        ("recipe: baseline", "recipe: smat2", 4, "unknown recipe 'smat2'"),
        ("generated?size=24", "csv:nowhere.csv", 1, "nowhere.csv"),
        ("source: tiny", "source: ./nowhere", 3, "no model at ./nowhere"),
    ],
)
def test_bad_input_is_one_line_and_code_2_before_anything_is_run(tmp_path, capsys, old, new, line, message):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD.replace(old, new))
    assert main(["study", "run", str(path), "--output-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"expound: {path}:{line}: ")
    assert message in said
    assert not (tmp_path / "runs").exists()


def test_what_there_is_nothing_of_is_said(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD)
    for words, message in (
        (["run", str(path), "--only", "nothing", "--dry-run"], "no run of"),
        (["table", str(path), "--table", "t"], "unknown table 't'"),
        (["leaderboard"], "contains no judged explanations"),
        (["run", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ):
        assert main(["study", *words, "--output-dir", str(tmp_path / "runs")]) == 2
        assert message in capsys.readouterr().err


def test_where_nothing_can_be_written_nothing_is_run(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD)
    for folder in ("/proc/nowhere", str(path)):
        assert main(["study", "run", str(path), "--output-dir", folder]) == 2
        assert f"cannot write to the folder {folder}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "status", "table", "report", "leaderboard", "page", "export", "import"])
def test_help_has_an_example(command, capsys):
    assert main(["study", command, "--help"]) == 0
    assert f"expound study {command} " in " ".join(capsys.readouterr().out.split())


def test_a_dry_run_says_what_is_not_here_and_ends_well(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    path = next(path for path in STUDIES if path.name == "er-table-2.yaml")
    assert main(["study", "run", str(path), "--dry-run", "--output-dir", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr()
    assert "er-table-2-small: 89 runs: 26 training runs (0 done), 63 judgements (0 done)" in shown.out
    lines = (path.parent / "shared" / "er.yaml").read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.startswith("  sst-train:"))
    assert re.search(rf"er\.yaml:{number}: datasets\.sst-train\.spec: .*sst", shown.err)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_file_has_a_trial(path, monkeypatch, tmp_path):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    study = load_study(path, "trial")
    assert study.file.seeds == [7]
    assert build_grid(study).runs


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_file_is_valid_and_asks_for_what_it_shows(path, scale, monkeypatch, tmp_path):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    study = load_study(path, scale)
    found = build_grid(study)
    assert found.runs
    assert study.file.title
    assert study.file.tables or study.file.figures
    judged = {run.dataset for run in found.runs if run.dataset}
    trained = {run.recipe for run in found.runs}
    parts = [*study.file.tables.values(), *study.file.figures.values()]
    for part in parts:
        assert set(part.where.get("dataset", ())) <= judged | {"SST Dev"}
        assert set(part.where.get("recipe", ())) <= trained
        for axis in [*getattr(part, "x", ()), *getattr(part, "y", ())]:
            assert axis.dataset is None or axis.dataset in judged


def test_every_table_and_figure_of_the_paper_has_its_file():
    tables, figures = (2, 3, 4, 5, 7, 9), (2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14)
    names = {f"er-table-{number}" for number in tables} | {f"er-fig-{number}" for number in figures}
    names |= {"er-fresh", "er-constrained", "er-rrr"}
    assert {path.stem for path in STUDIES if path.stem.startswith("er-")} == names
    listed = (STUDIES[0].parent / "README.md").read_text()
    assert all(f"`{path.name}`" in listed for path in STUDIES)


@pytest.mark.parametrize("part", sorted((STUDIES[0].parent / "pages").glob("*.md")), ids=lambda part: part.stem)
def test_every_part_of_a_page_names_what_its_studies_have(part, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    assert main(["study", "page", str(part), "--output-dir", str(tmp_path / "runs")]) == 0
    page = capsys.readouterr().out
    # Without runs, no claim with a figure has a computed verdict.
    assert not re.search(r"\*\*(reproduced|contradicted|undecided)\*\* ?(\||\()", page)
    if "| n × seeds |" in part.read_text():
        assert "| not tested (not run) |" in page
