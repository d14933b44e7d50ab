"""How the engine handles runs that fail, wait for each other, or die with their worker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from expound.evaluation.workers.local import LocalWorkers
from expound_papers.runs.run_cell import run_all
from expound_papers.runs.store import Cell, Store
from forks import forge
from small_cells import Inline, cells, dying, filling, ordinary, raising, raising_once, refusing, slow

PATIENT = 600  # seconds; a machine with much else to do starts processes slowly


def list_done(root, these):
    return [cell.config["number"] for cell in these if Store(root).is_done(cell.key)]


def run_cells(root, these, workers=None):
    told = []
    outcome = run_all(these, root, workers or Inline(), lambda cell, ended: told.append((cell.title, ended.status)))
    return outcome, told


def test_a_run_that_raises_is_tried_three_times_then_reported_and_the_others_go_on(tmp_path):
    good = cells(3)
    bad = Cell({"kind": "test", "number": 9}, raising, "bad")
    after = Cell({"kind": "test", "number": 10}, ordinary, "after", needs=(bad.key,))
    outcome, told = run_cells(tmp_path / "store", [bad, *good, after])
    assert outcome.failed == {bad.key: "RuntimeError: broken on purpose", after.key: "needs 'bad', which failed"}
    assert list_done(tmp_path / "store", good) == [0, 1, 2]
    assert told.count(("bad", "failed")) == 3
    assert "broken on purpose" in Store(tmp_path / "store").failure_path(bad.key).read_text()


def test_a_run_that_failed_once_is_mended_and_bad_input_is_not_tried_again(tmp_path):
    once = Cell({"kind": "test", "number": 1}, raising_once, "once")
    bad = Cell({"kind": "test", "number": 2}, refusing, "bad")
    outcome, told = run_cells(tmp_path / "store", [once, bad])
    assert outcome.failed == {bad.key: "there is no dataset"}
    assert told == [("once", "failed"), ("once", "done"), ("bad", "failed")]
    assert not Store(tmp_path / "store").failure_path(once.key).exists()


def test_when_the_time_is_up_no_run_is_begun_and_the_same_call_goes_on(tmp_path):
    these = cells(3)
    for minutes, left in ((0, 3), (1e-9, 3), (None, 0)):
        outcome = run_all(these, tmp_path / "store", Inline(), minutes=minutes)
        assert (outcome.waiting, len(outcome.done), outcome.failed) == (left, 3 - left, {})


def test_needs_come_first_in_whatever_order_runs_are_given(tmp_path):
    first, second = cells(2)
    late = Cell({"kind": "test", "number": 2}, ordinary, "late", needs=(first.key, second.key))
    _, told = run_cells(tmp_path / "store", [late, second, first])
    assert [title for title, _ in told] == ["run 1", "run 0", "late"]


def test_on_a_full_disk_nothing_new_is_begun_and_what_is_done_stays(tmp_path):
    these = cells(4)
    full = Cell({"kind": "test", "number": 9}, filling, "full")
    outcome, told = run_cells(tmp_path / "store", [*these[:2], full, *these[2:]])
    assert outcome.full
    assert list_done(tmp_path / "store", these) == [0, 1]
    assert told[-1] == ("full", "full")
    outcome, _ = run_cells(tmp_path / "store", these)
    assert not outcome.full
    assert list_done(tmp_path / "store", these) == [0, 1, 2, 3]


def test_a_worker_killed_loses_its_own_run_alone_and_all_have_their_threads_and_gpu(tmp_path, monkeypatch):
    """A Ctrl-C while a worker starts is the command's affair: it kills no run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    these = [*cells(6), Cell({"kind": "test", "number": 9}, dying, "dies")]
    looks = [Cell({"kind": "look", "number": number}, report_worker, f"look {number}") for number in range(2)]
    root = tmp_path / "store"
    root.mkdir()
    workers = LocalWorkers(2, threads=1, gpus=2)
    for number in (signal.SIGINT, signal.SIGINT):
        os.kill(workers.workers[0].process.pid, number)
    outcome, told = run_cells(root, [*looks, *these[::-1]], workers)
    assert outcome.failed == {}
    assert list_done(root, these) == [0, 1, 2, 3, 4, 5, 9]
    assert [title for title, status in told if status == "killed"] == ["dies"]
    assert (tmp_path / "log").read_text().count("\n") == 7
    seen = {(Store(root).cell_folder(cell.key) / "seen.txt").read_text() for cell in looks}
    assert seen == {"1 1 4", "1 1 7"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


def report_worker(cell, space):
    """Waits for the other run, so that each has its own worker."""
    import datasets
    import torch

    (space.store.root / f"here {cell.config['number']}").touch()
    wait_until(lambda: len(list(space.store.root.glob("here *"))) == 2)
    facts = [str(torch.get_num_threads()), os.environ["OMP_NUM_THREADS"], os.environ["CUDA_VISIBLE_DEVICES"]]
    assert datasets.are_progress_bars_disabled()
    (space.output / "seen.txt").write_text(" ".join(facts))


def run_slow_cells(root):
    """Runs two cells with one worker, as a command does."""
    try:
        run_all(cells(2, slow), root, LocalWorkers(1, threads=1, gpus=0))
    except KeyboardInterrupt:
        return 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command(tmp_path, number):
    claims = tmp_path / "store" / ".claims"
    with forge() as command:
        command.start(run_slow_cells, tmp_path / "store")
        wait_until(lambda: claims.is_dir() and any(path.is_file() for path in claims.glob("[0-9a-f]*")))
        workers = list_workers(command.pid)
        command.kill(number)
        assert command.wait() == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    wait_until(lambda: not any(is_alive(worker) for worker in workers))
    assert workers


def is_alive(process):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def list_workers(process):
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(each) for each in listed if "spawn_main" in Path(f"/proc/{each}/cmdline").read_text()]


def wait_until(happened, seconds=PATIENT):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)
