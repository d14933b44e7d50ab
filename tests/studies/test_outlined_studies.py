"""A study that is only looked at has the runs, addresses and estimates of one that is run; digests are remembered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exegete.data.outline import outlined
from exegete.studies.runs.grid import grid
from exegete.studies.spec.remembered import remembered
from exegete.studies.spec.study_file import load_study

STUDIES = Path(__file__).parents[2] / "studies"


def runs(name):
    found = grid(load_study(STUDIES / f"{name}.yaml", "small"))
    return [(run.title, run.cell.key, run.cell.flops, run.cell.needs) for run in found.runs]


@pytest.mark.parametrize(
    "name", ["er-table-2", "er-fig-2", "aml-table-1", "ivra-table-1", "regex-table-1", "smat-table-1", "smat-table-2"]
)
def test_addresses_are_the_same_by_outlines(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with outlined():
        looked_at = runs(name)
    assert looked_at == runs(name)
    assert looked_at


def test_a_file_is_digested_again_only_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, calls = tmp_path / "data.txt", []

    def made():
        calls.append(1)
        return {"digest": file.read_text()}

    file.write_text("one")
    assert [remembered("a", [file], made) for _ in range(3)] == 3 * [{"digest": "one"}]
    assert len(calls) == 1
    remembered("b", [file], made)
    assert len(calls) == 2
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert remembered("a", [file], made) == {"digest": "two"}
    (tmp_path / "cache").chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert remembered("c", [file], made) == {"digest": "two"}
