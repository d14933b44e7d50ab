"""A run is done once, also after kills and torn files, and with several workers at once."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import random
import shutil
import signal
import time
from collections import Counter

import pytest

from expound.data.atomic_files import try_lock
from expound.errors import is_disk_full
from expound.evaluation.workers.scheduler import try_task
from expound_papers.runs import store as cell_module
from expound_papers.runs.run_cell import make_task, remove_leftovers, run_cell
from expound_papers.runs.store import RECORD, Cell, Store
from small_cells import cells, note, ordinary

FORK = mp.get_context("fork")


def count_runs(folder):
    return Counter(line.split()[0] for line in (folder / "log").read_text().splitlines())


def check_files(store, cell):
    folder = store.cell_folder(cell.key)
    assert store.is_done(cell.key)
    assert (folder / "first.txt").read_text() == str(cell.config["number"])
    assert (folder / "folder" / "second.txt").stat().st_size == 2000
    return (folder / RECORD).read_bytes()


def run_all_cells(root, these, seed):
    random.Random(seed).shuffle(these)
    todo = these
    while todo:
        todo = [cell for cell in todo if not run_cell(cell, root)]


def test_a_finished_run_is_not_done_again_and_a_changed_one_is(tmp_path):
    (cell,) = cells(1)
    assert run_cell(cell, tmp_path / "store")
    assert run_cell(cell, tmp_path / "store")
    assert count_runs(tmp_path) == {"0": 1}
    changed = Cell({**cell.config, "rate": 0.1}, ordinary, "changed")
    assert changed.key != cell.key
    assert Cell(dict(reversed(changed.config.items())), ordinary, "the same").key == changed.key
    run_cell(changed, tmp_path / "store")
    assert count_runs(tmp_path) == {"0": 2}
    assert not (tmp_path / "store" / ".work" / cell.key).exists()


def test_eight_workers_do_64_runs_exactly_once(tmp_path):
    these = cells(64)
    workers = [FORK.Process(target=run_all_cells, args=(tmp_path / "store", list(these), seed)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    assert count_runs(tmp_path) == {str(number): 1 for number in range(64)}
    for cell in these:
        check_files(Store(tmp_path / "store"), cell)
    assert not any((tmp_path / "store" / ".claims").iterdir())


def test_kills_lose_no_finished_run_and_do_none_twice(tmp_path):
    root, chance, seen = tmp_path / "store", random.Random(1), dict[str, bytes]()
    store, these, kills = Store(root), cells(150, sources={"pause": 0.001}), 0
    while (kills < 24 or len(seen) <= 20) and len(seen) < 120:  # a busy machine finishes few runs between kills
        worker = FORK.Process(target=run_all_cells, args=(root, list(these), kills))
        begun = len(list(store.root.glob(".work/*"))) + len(seen)
        worker.start()
        while len(list(store.root.glob(".work/*"))) + len(list(store.root.glob("cells/*"))) <= begun:
            assert worker.is_alive()
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.05) * (1 + kills / 10))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        kills += 1
        for cell in these:
            if cell.key in seen:
                assert check_files(store, cell) == seen[cell.key]
            elif store.cell_folder(cell.key).exists():
                seen[cell.key] = check_files(store, cell)
    assert kills > 20
    assert 20 < len(seen) < len(these)
    run_all_cells(root, list(these), 0)
    for cell in these:
        assert check_files(store, cell) == seen.get(cell.key, check_files(store, cell))
    assert not list(root.glob("cells/.*"))


TEARS = {
    "no record": lambda folder: (folder / RECORD).unlink(),
    "half a record": lambda folder: (folder / RECORD).write_text((folder / RECORD).read_text()[:40]),
    "an empty record": lambda folder: (folder / RECORD).write_text(""),
    "a record of something else": lambda folder: (folder / RECORD).write_text(
        '{"key": "x", "config": {}, "files": {}}'
    ),
    "another configuration": lambda folder: edit(folder, config={"number": 5}),
    "no list of files": lambda folder: edit(folder, files=None),
    "half a file": lambda folder: (folder / "folder" / "second.txt").write_text("x" * 1000),
    "an empty file": lambda folder: (folder / "first.txt").write_text(""),
    "a missing file": lambda folder: (folder / "first.txt").unlink(),
    "a missing folder": lambda folder: shutil.rmtree(folder / "folder"),
}


def edit(folder, **changes):
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps(record | changes))


@pytest.mark.parametrize("how", TEARS)
def test_a_torn_run_counts_as_none_and_is_kept_aside(tmp_path, how):
    store, (cell, other) = Store(tmp_path / "store"), cells(2)
    run_cell(cell, store.root)
    run_cell(other, store.root)
    TEARS[how](store.cell_folder(cell.key))
    assert not store.is_done(cell.key)
    assert store.list_finished() == [other.key]
    run_cell(cell, store.root)
    check_files(store, cell)
    assert count_runs(tmp_path) == {"0": 2, "1": 1}
    assert len(list((store.root / ".damaged").iterdir())) == 1


def test_what_a_killed_attempt_left_is_used_or_swept(tmp_path):
    store, (cell,) = Store(tmp_path / "store"), cells(1)
    left = store.root / "cells" / f".{cell.key}.abc"
    left.mkdir(parents=True)
    (left / "first.txt").write_text("torn")
    store.work_folder(cell.key).mkdir(parents=True)
    (store.work_folder(cell.key) / "checkpoint").write_text("8 steps")
    seen = []

    def read_checkpoint(cell, space):
        seen.append((space.work / "checkpoint").read_text())
        ordinary(cell, space)

    run_cell(Cell(cell.config, read_checkpoint, "looks"), store.root)
    assert seen == ["8 steps"]
    assert not left.exists()
    check_files(store, cell)


def test_what_was_left_of_a_finished_run_is_swept_unless_somebody_is_at_it(tmp_path):
    store, (cell, other) = Store(tmp_path / "store"), cells(2)
    for each in (cell, other):
        run_cell(each, store.root)
        store.work_folder(each.key).mkdir()
        store.failure_path(each.key).parent.mkdir(exist_ok=True)
        store.failure_path(each.key).write_text("")
        assert store.failure_reason(each.key) == "its reason could not be written"
        store.failure_path(each.key).write_text("raised once")
        assert store.failure_reason(each.key) == "raised once"
        (store.root / "cells" / f".{each.key}.abc").mkdir()
    store.lock_path(cell.key).touch()
    with try_lock(store.lock_path(other.key)):
        remove_leftovers((cell, other), store.root)
        assert store.find_leftovers() == {other.key}
        assert not store.failure_path(cell.key).exists()
        assert store.failure_path(other.key).exists()
    remove_leftovers((cell, other), store.root)
    assert store.find_leftovers() == set()
    assert {path.name for path in store.root.rglob("*") if path.is_file() and path.name.startswith(".")} == set()


def test_a_living_or_frozen_process_keeps_its_lock_and_a_dead_one_loses_it(tmp_path):
    path = tmp_path / "locks" / "key"
    with try_lock(path) as first:
        assert first
        with try_lock(path) as second:
            assert not second
    assert not path.exists()
    held = FORK.Event()
    child = FORK.Process(target=hold, args=(path, held))
    child.start()
    assert held.wait(60)
    os.kill(child.pid, signal.SIGSTOP)
    with try_lock(path) as acquired:
        assert not acquired
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert path.exists()
    with try_lock(path) as acquired:
        assert acquired


def hold(path, held):
    with try_lock(path):
        held.set()
        time.sleep(60)


def test_the_lock_of_a_dead_process_has_one_heir(tmp_path):
    path, together = tmp_path / "locks" / "key", FORK.Barrier(4)
    path.parent.mkdir()
    children = [FORK.Process(target=inherit, args=(path, tmp_path, together)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert count_runs(tmp_path) == {f"heir-{number}": 1 for number in range(20)}


def inherit(path, folder, together):
    for number in range(20):
        # One of the four writes what the dead process left.
        if together.wait() == 0:
            path.write_text("{}")
        together.wait()
        with try_lock(path) as acquired:
            if acquired:
                note(folder, f"heir-{number}")
            together.wait()


def test_a_late_zombie_does_not_replace_what_is_finished(tmp_path):
    store, (cell,) = Store(tmp_path / "store"), cells(1)

    def run_too_late(cell, space):
        with Store(store.root).workspace(Cell(cell.config, ordinary, "the thief")) as thief:
            ordinary(cell, thief)
            cell_module.write_record(thief.output, cell, 1, seconds=1.0, cpu_seconds=1.0)
        (space.output / "first.txt").write_text("late")

    assert run_cell(Cell(cell.config, run_too_late, "the zombie"), store.root)
    check_files(store, cell)


@pytest.mark.parametrize("at", ["atomic_folder", "write_json"])
def test_a_full_disk_is_named_and_leaves_no_half_run(tmp_path, monkeypatch, at):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    store, (first, second) = Store(tmp_path / "store"), cells(2)
    run_cell(first, store.root)
    with monkeypatch.context() as patch:
        patch.setattr(cell_module, at, full)
        ended = try_task(make_task(second, store.root))
    assert (ended.status, "No space left" in ended.message) == ("full", True)
    assert store.list_finished() == [first.key]
    assert not list(store.root.glob("cells/.*"))
    assert try_task(make_task(second, store.root)).status == "done"


def test_errors_are_told_apart():
    assert is_disk_full(OSError(122, "Disk quota exceeded"))
    assert is_disk_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not is_disk_full(OSError(2, "No such file"))
