"""Training on a full disk, or into a folder that another process writes: one clear line, no half-written file."""

import os
import resource
from contextlib import contextmanager

import pytest

from expound.cli import main
from expound.data.atomic_files import only_writer
from expound.training.loop.run import find_flaws, list_checkpoints
from runs import difference, weights

COMMAND = ["train", "baseline", "--model", "tiny", "--data", "generated?size=40", "--epochs", "2", "--quiet"]


def train(folder):
    return main([*COMMAND, "--output-dir", str(folder)])


@contextmanager
def room_for(size):
    """Limit files to this many bytes inside the block, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def reference_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(folder) == 0
    return folder


@pytest.mark.parametrize("share", [0.001, 0.02, 0.99, 1.5], ids=["nothing", "few", "weights", "moments"])
def test_a_full_disk_is_one_line_of_error_and_the_run_can_be_resumed(reference_folder, tmp_path, share, capsys):
    with room_for(int(share * (reference_folder / "model.safetensors").stat().st_size)):
        assert train(tmp_path) == 2
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("expound:")]
    assert "cannot be written" in line
    assert "Traceback" not in said
    assert not any(any(True for _ in find_flaws(path)) for path in list_checkpoints(tmp_path))
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert train(tmp_path) == 0
    assert difference(weights(tmp_path), weights(reference_folder)) == 0
    assert {path.name for path in tmp_path.iterdir()} >= {path.name for path in reference_folder.iterdir()}


def test_a_second_training_into_one_folder_is_refused_with_the_writers_process(tmp_path, capsys):
    with only_writer(tmp_path):
        before = sorted(path.name for path in tmp_path.iterdir())
        assert train(tmp_path) == 2
        assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_of_something_else_is_still_left_alone(tmp_path, capsys):
    (tmp_path / "letter.txt").touch()
    assert train(tmp_path) == 2
    assert "holds something else" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
