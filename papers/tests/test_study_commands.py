"""`expound study` from the command line's point of view; the studies of the papers are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from expound.cli import main
from expound_papers.study.loading import list_studies, load_study
from families import sweep_others

FOLDER = Path(__file__).parents[1]
STUDIES = sorted(list_studies())
GOOD = """\
from expound_papers.study import Data, Model, Study, Training, register
@register
def study(study: Study) -> None:
    train, dev = (Data(name, "generated?size=24", split=name) for name in ("train", "dev"))
    study.train("plain", "baseline", Training("films", train, dev), Model("tiny", "tiny"))
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ('"tiny"))', '"tiny")', ":5: ", "'(' was never closed"),
        ('"baseline"', '"smat2"', ":5: ", "unknown recipe 'smat2'"),
        ("generated?size=24", "csv:nowhere.csv", "", "nowhere.csv"),
        ('"tiny", "tiny"', '"tiny", "./nowhere"', "", "no model at ./nowhere"),
    ],
)
def test_bad_input_is_one_line_and_code_2_before_anything_is_run(tmp_path, capsys, old, new, place, message):
    path = tmp_path / "study.py"
    path.write_text(GOOD.replace(old, new))
    assert main(["study", "run", str(path), "--output-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"expound: {path}{place}" if place else "expound: ")
    assert message in said
    assert not (tmp_path / "runs").exists()


def test_what_there_is_nothing_of_is_said(tmp_path, capsys):
    path = tmp_path / "study.py"
    path.write_text(GOOD)
    for words, message in (
        (["run", str(path), "--only", "nothing", "--dry-run"], "no run of"),
        (["table", str(path), "--table", "t"], "unknown table 't'"),
        (["leaderboard"], "contains no judged explanations"),
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "er-table-22"], "unknown study 'er-table-22'. Did you mean 'er-table-2'"),
    ):
        assert main(["study", *words, "--output-dir", str(tmp_path / "runs")]) == 2
        assert message in capsys.readouterr().err


def test_where_nothing_can_be_written_nothing_is_run(tmp_path, capsys):
    path = tmp_path / "study.py"
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
    assert main(["study", "run", "er-table-2", "--dry-run", "--output-dir", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr()
    assert "er-table-2-small: 377 runs: 98 training runs (0 done), 279 judgements (0 done)" in shown.out
    assert re.search(r"not on this machine: sst-train: .*sst", shown.err)


@pytest.mark.parametrize("name", sweep_others(STUDIES, STUDIES[::8]))
def test_a_study_has_a_trial(name, monkeypatch, tmp_path):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    study = load_study(name, "trial")
    assert study.seeds == [7]
    assert study.runs


def test_every_table_and_figure_of_the_paper_has_its_study():
    tables, figures = (2, 3, 4, 5, 7, 9), (2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14)
    names = {f"er-table-{number}" for number in tables} | {f"er-fig-{number}" for number in figures}
    names |= {"er-constrained", "er-cost", "er-films", "er-fresh", "er-rrr"}
    assert {name for name in STUDIES if name.startswith("er-")} == names
    listed = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in listed for name in STUDIES)


@pytest.mark.parametrize("part", sorted((FOLDER / "pages").glob("*.md")), ids=lambda part: part.stem)
def test_every_part_of_a_page_names_what_its_studies_have(part, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("EXPOUND_DATA", str(tmp_path))
    assert main(["study", "page", str(part), "--output-dir", str(tmp_path / "runs")]) == 0
    page = capsys.readouterr().out
    # Without runs, no claim with a figure has a computed verdict.
    assert not re.search(r"\*\*(reproduced|contradicted|undecided)\*\* ?(\||\()", page)
    if "| n × seeds |" in part.read_text():
        assert "| not tested (not run) |" in page
