"""Files that a killed process left are removed, those of a living one stay; a folder has one writer at a time."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from expound import ExpoundError
from expound.data.atomic_files import (
    LOCK,
    atomic_file,
    atomic_folder,
    only_writer,
    remove_abandoned,
    remove_abandoned_lock,
    temporary_path,
)
from expound.data.provenance import RECORD, write_json
from expound.training.loop.run import TrainingRun

SRC = Path(__file__).parents[2] / "src"


def start_process(code, folder):
    """Start a Python process with this code; return it and the first line that it prints."""
    script = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); folder = __import__('pathlib').Path({str(folder)!r}); {code}"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def run_and_kill(code, folder):
    process, said = start_process(code, folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return said


HALF = (
    "from expound.data.atomic_files import temporary_path\n"
    "path = temporary_path(folder / 'a.json'); path.write_text('{'); print(path.name, flush=True); input()"
)


def test_what_a_killed_process_left_goes_with_the_next_whole_file(tmp_path):
    left = run_and_kill(HALF, tmp_path)
    assert (tmp_path / left).exists()
    write_json(tmp_path / "b.json", {})
    assert (tmp_path / left).exists()
    write_json(tmp_path / "a.json", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_run_starts_where_one_was_killed_as_it_wrote_its_first_record(tmp_path):
    run_and_kill(HALF.replace("a.json", RECORD), tmp_path)
    run = TrainingRun(tmp_path, {"seed": 0})
    assert run.begin(resume=True, overwrite=False) is None
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]


def test_folders_too(tmp_path):
    left = run_and_kill(HALF.replace("path.write_text('{')", "(path / 'in').mkdir(parents=True)"), tmp_path)
    assert (tmp_path / left / "in").is_dir()
    with atomic_folder(tmp_path / "a.json"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_a_living_process_writes_stays(tmp_path):
    process, theirs = start_process(HALF, tmp_path)
    ours = temporary_path(tmp_path / "a.json")
    ours.touch()
    other_machine = tmp_path / f".a.json.00000000-1-1.{'0' * 32}"
    other_machine.touch()
    strange = [tmp_path / ".a.json.swp", tmp_path / f".a.json.{'0' * 32}", tmp_path / ".ab.json"]
    for path in strange:
        path.touch()
    with atomic_file(tmp_path / "a.json") as fresh:
        fresh.touch()
    process.kill()
    process.wait()
    assert all(path.exists() for path in (ours, other_machine, *strange, tmp_path / theirs))
    remove_abandoned(tmp_path / "a.json")
    assert not (tmp_path / theirs).exists()


def test_names_with_patterns_in_them_are_only_names(tmp_path):
    with atomic_file(tmp_path / "a[1]*.json") as fresh:
        fresh.touch()
    assert [path.name for path in tmp_path.iterdir()] == ["a[1]*.json"]


def test_a_second_writer_is_told_who_writes_and_leaves_nothing(tmp_path):
    with only_writer(tmp_path):
        before = (tmp_path / LOCK).read_text()
        with (
            pytest.raises(ExpoundError, match=rf"is being written by process {os.getpid()} on \S+ since 20"),
            only_writer(tmp_path),
        ):
            raise AssertionError("two writers")  # fmt: skip
        assert (tmp_path / LOCK).read_text() == before
        assert json.loads(before)["process"] == os.getpid()
    assert not list(tmp_path.iterdir())
    with only_writer(tmp_path):
        pass


def test_a_killed_writer_is_not_in_the_way(tmp_path):
    code = "from expound.data.atomic_files import only_writer; ours = only_writer(folder); ours.__enter__(); "
    code += "print('in', flush=True); input()"
    process, _ = start_process(code, tmp_path)
    with pytest.raises(ExpoundError, match=f"process {process.pid} "), only_writer(tmp_path):
        pass
    process.kill()
    process.wait()
    assert (tmp_path / LOCK).exists()
    with only_writer(tmp_path):
        remove_abandoned_lock(tmp_path)
        assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())
    (tmp_path / LOCK).write_text("{}")
    remove_abandoned_lock(tmp_path)
    assert not list(tmp_path.iterdir())


def test_of_many_writers_one_is_in_at_a_time(tmp_path):
    inside, refused, most = [], [], []

    def write():
        for _ in range(50):
            try:
                with only_writer(tmp_path):
                    inside.append(None)
                    most.append(len(inside))
                    inside.pop()
            except ExpoundError:
                refused.append(None)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert len(most) + len(refused) == 400
