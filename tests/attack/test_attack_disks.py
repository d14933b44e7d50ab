"""A full or read-only disk: one clear line, no half-written file, and the same result once there is room."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import pytest

import stored
from attacked import LONG, record_outcomes, scale_count
from commands import SEARCH, STUDY, build_arguments, save_model
from expound_papers.runs.run_cell import run_cell
from expound_papers.study.loading import load_study
from expound_people.storage import Storage
from forks import command, forge, run_to_end
from sites import admin, csrf
from studies import annotator, letters, project, site

USUAL = ["explain", "compare", "study table", "study import"]
if LONG:
    USUAL += ["page", "study page", "study export", "baseline", "smat", "ivra"]
    USUAL += ["fresh", "at2", "corpus", SEARCH, "demo", "study"]
TWO_WRITERS = ["compare", "corpus", "baseline", "study", "aml", SEARCH]
PRINTED = {
    "methods": ["methods"],
    "metrics": ["metrics"],
    "objectives": ["objectives"],
    "datasets": ["datasets"],
    "doctor": ["doctor"],
    "study table": ["study", "table", STUDY, "--output-dir"],
}
LINE = "a moving film about a small town"
SIZE, PAGE = 1 << 25, 1 << 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished study."""
    folder = tmp_path_factory.mktemp("finished") / "runs"
    for cell in load_study(STUDY).cells:
        assert run_cell(cell, folder)
    return folder


class Disk:
    """A folder with a given amount of free space: a file system in memory if it can be mounted, or limits on files.

    Limits on files only resemble a full disk: each file has a limit of its own, for any number of files.
    """

    def __init__(self, folder):
        self.folder, self.limit = folder, None
        folder.mkdir()
        self.mounted = self._mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs")
        self.filler = folder / "filler"

    def _mount(self, *options):
        run = subprocess.run(["mount", *options, self.folder], capture_output=True, check=False)
        return run.returncode == 0

    def leave_room(self, size):
        """Leaves this number of bytes free; with None, as many as there are."""
        self.filler.unlink(missing_ok=True)
        self.limit = None if self.mounted else size
        if self.mounted and size is not None:
            with self.filler.open("wb") as file:
                file.write(bytes(shutil.disk_usage(self.folder).free - size))

    def make_read_only(self):
        """Makes the folder read-only from now on; returns False if that is impossible."""
        if self.mounted:
            return self._mount("-o", "remount,ro")
        for folder in [self.folder, *self.folder.rglob("*/")]:
            folder.chmod(0o555)
        return os.geteuid() != 0

    def limit_file_size(self):
        """Sets the limit on files; is called in the process of a command."""
        if self.limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def disk(folder):
    found = Disk(folder)
    try:
        yield found
    finally:
        if found.mounted:
            subprocess.run(["umount", "-l", folder], check=True)
        else:
            for path in [folder, *folder.rglob("*/")]:
                path.chmod(0o755)


def build_usual_arguments(name, model, runs, folder):
    """The arguments of a command of `USUAL` that writes into the folder."""
    if name in ("explain", "page"):
        where = ["--output-dir", folder / "run"] if name == "explain" else ["--html", folder / "page.html"]
        return ["explain", LINE, "--model", model, "--methods", "saliency,occlusion", *where]
    if name == "study table":
        return ["study", "report", STUDY, "--output-dir", folder]
    if name == "study page":
        return ["study", "page", STUDY, "--output-dir", runs, "--output", folder / "page.md"]
    if name == "study export":
        return ["study", "export", folder / STUDY.name, "--output-dir", runs]
    if name == "study import":
        return ["study", "import", runs, "--output-dir", folder]
    if name == "demo":  # by a path that is the same on each disk: its comparison is of the model that stands there
        return ["demo", "--methods", "saliency,random", "--limit", "8", "--device", "cpu", "-q", "--output-dir", "run"]
    return build_arguments(name, model, folder / "run")


def enter_folder(folder, then=None):
    """Changes into the folder and calls `then`; is called in the process of a command."""
    os.chdir(folder)
    if then is not None:
        then()


def prepare(name, runs, folder):
    """Copies the files that a command needs into the folder."""
    if name == "study table":
        shutil.copytree(runs, folder, dirs_exist_ok=True)
    if name == "study export":
        shutil.copy(STUDY, folder)


def require_one_line(code, output):
    assert "Traceback" not in output, output
    if code == 1:  # a study goes on to runs that can still be done
        assert re.search(
            "^the disk of .* is full: free some space and run the same command|could not be written", output, re.M
        )
        return
    assert code == 2, output
    (line,) = [line for line in output.splitlines() if line.startswith("expound:")]
    assert len(line) < 500


@pytest.mark.parametrize("name", USUAL)
def test_a_full_disk_is_told_and_the_command_goes_on_when_there_is_room(name, model, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPOUND_SCALE", "0.01")
    log, undisturbed = tmp_path / "said", tmp_path / "whole"
    undisturbed.mkdir()
    with disk(tmp_path / "disk") as place, record_outcomes("full disk", name) as counts, forge() as process:
        prepare(name, runs, undisturbed)
        prepare(name, runs, place.folder)
        code, output = run_to_end(
            process, build_usual_arguments(name, model, runs, undisturbed), log, partial(enter_folder, undisturbed)
        )
        assert code == 0, output
        expected = stored.read_folder(undisturbed)
        size = sum(path.stat().st_size for path in undisturbed.rglob("*") if path.is_file())
        count = (2 if name in ("demo", "study") else 5) if LONG else 2
        for number in range(count):
            place.leave_room(number * size // count // PAGE * PAGE)
            enter_limited = partial(enter_folder, place.folder, place.limit_file_size)
            code, output = run_to_end(
                process, build_usual_arguments(name, model, runs, place.folder), log, enter_limited
            )
            counts["cases"] += 1
            counts["refused"] += code != 0
            if code:
                require_one_line(code, output)
            left = [path for path in place.folder.rglob(".*") if path.is_file() and path.name != ".lock"]
            assert not [path for path in left if path.name.count(".") > 3], left
        place.leave_room(None)
        code, output = run_to_end(
            process, build_usual_arguments(name, model, runs, place.folder), log, partial(enter_folder, place.folder)
        )
        assert code == 0, output
        assert stored.difference(place.folder, expected) == {}
        assert counts["refused"] > 0
        counts["on a file system of its own" if place.mounted else "by a limit on files"] = counts["cases"]


@pytest.mark.parametrize("name", USUAL)
def test_a_folder_that_may_only_be_read_is_told_in_one_line(name, model, runs, tmp_path):
    with disk(tmp_path / "disk") as place, record_outcomes("read-only folder", name) as counts, forge() as process:
        prepare(name, runs, place.folder)
        if not place.make_read_only():
            return
        before = stored.read_folder(place.folder)
        inside = partial(enter_folder, place.folder)
        require_one_line(
            *run_to_end(process, build_usual_arguments(name, model, runs, place.folder), tmp_path / "said", inside)
        )
        assert stored.difference(place.folder, before) == {}
        counts["cases"] += 1


@pytest.mark.parametrize("name", [*TWO_WRITERS] if LONG else ["compare"])
def test_of_two_writers_into_one_folder_one_is_told_and_the_result_is_whole(name, model, tmp_path):
    undisturbed, run, logs = tmp_path / "whole" / "run", tmp_path / "shared" / "run", [tmp_path / "a", tmp_path / "b"]
    with record_outcomes("two writers", name) as counts, forge() as first, forge() as second:
        code, output = run_to_end(first, build_arguments(name, model, undisturbed), logs[0])
        assert code == 0, output
        expected = stored.read_folder(undisturbed.parent)
        for _ in range(scale_count(1 if name == "study" else 4)):
            for process, log in zip((first, second), logs, strict=True):
                process.start(command, build_arguments(name, model, run), log)
            codes = [first.wait(), second.wait()]
            assert 0 in codes
            for code, log in zip(codes, logs, strict=True):
                if code:
                    require_one_line(code, log.read_text())
                    counts["refused"] += 1
            assert stored.difference(run.parent, expected) == {}
            shutil.rmtree(run)
            counts["cases"] += 1


@pytest.mark.parametrize("name", PRINTED)
def test_what_is_printed_onto_a_full_disk_is_told_in_one_line(name, runs, tmp_path):
    words = [*PRINTED[name], runs] if PRINTED[name][-1] == "--output-dir" else PRINTED[name]
    with record_outcomes("full disk", f"{name}, printed") as counts, forge() as process:
        process.start(run_onto_full_disk, words, tmp_path / "said")
        require_one_line(process.wait(), (tmp_path / "said").read_text())
        counts |= {"cases": 1, "refused": 1}


def run_onto_full_disk(words, log):
    """Runs a command whose output goes to a full device."""

    def open_full_device():
        sys.stdout = open("/dev/full", "w")  # noqa: SIM115

    try:
        return command(words, log, open_full_device)
    finally:
        sys.stdout = sys.stderr


def test_an_answer_that_finds_the_disk_full_is_refused_and_taken_once_there_is_room(tmp_path):
    with disk(tmp_path / "disk") as place, record_outcomes("full disk", "serve") as counts:
        if not place.mounted:
            return
        made = site(tmp_path, with_model=False, database=Storage(f"sqlite:///{place.folder}/studies.db"))
        ada = annotator(made, project(made)["Ada"])
        form = {"csrf": csrf(ada.get("/annotate/1")), "phase": ""}
        form |= {f"rank-{name}": "1" for name in letters(ada.get("/annotate/1"))}
        refused = 0
        for number in range(scale_count(60)):
            place.leave_room(0 if number % 2 else None)
            answer = ada.post("/annotate/1", data=form | {"comment": "x" * 1900}, follow_redirects=False)
            assert answer.status_code in (303, 503)  # the file may have room in itself
            assert number % 2 or answer.status_code == 303
            refused += answer.status_code == 503
            counts["cases"] += 1
        counts["refused"] = refused
        assert refused
        place.leave_room(0)
        for export in ("answers.csv", "answers.parquet"):
            assert admin(made).get(f"/studies/first/export/{export}").status_code == 200
        place.leave_room(None)
        assert ada.post("/annotate/1", data=form, follow_redirects=False).status_code == 303
        made.application.storage.close()


def test_a_storage_that_cannot_be_made_on_a_full_disk_is_told_in_one_line(tmp_path):
    with disk(tmp_path / "disk") as place, record_outcomes("full disk", "serve") as counts, forge() as process:
        place.leave_room(0)
        where = ["--storage", f"sqlite:///{place.folder}/studies.db"]
        words = ["people", "create", "films", *where, "--data", "generated?size=8"]
        process.start(command, words, tmp_path / "said", place.limit_file_size)
        require_one_line(process.wait(), (tmp_path / "said").read_text())
        counts |= {"cases": 1, "refused": 1}
