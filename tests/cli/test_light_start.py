"""Commands that look at nothing but names, files and finished runs import no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import exegete

STUDIES = Path(__file__).parents[2] / "studies"
COMMANDS = """
import sys
from exegete.cli import main
for line in sys.stdin.read().splitlines():
    code, *words = line.split()
    assert main(words) == int(code), line
    found = {"torch", "transformers", "captum", "sklearn", "optuna", "datasets"} & sys.modules.keys()
    assert not found, (line, found)
"""


def imported_nothing(commands, folder):
    environment = os.environ | {"PYTHONPATH": str(Path(exegete.__file__).parents[1]), "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", COMMANDS], input=commands, cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_help_and_wrong_arguments(tmp_path):
    commands = [
        "0 --help", "0 train --help", "0 train er_joint --help", "0 train ivra --help", "0 study run --help",
        "2 train", "2 train nothing", "2 train er_joint --guide", "2 train er_joint --data x", "2 explain",
        "2 compare --limit few", "2 study run nowhere.yaml", "2 study status nowhere.yaml",
    ]  # fmt: skip
    done = imported_nothing("\n".join(commands), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Guide explanations towards human rationales" in done.stdout


@pytest.mark.parametrize("name", ["er-table-2", "aml-table-1"])
def test_studies_are_looked_at(name, tmp_path):
    file = STUDIES / f"{name}.yaml"
    commands = f"0 study run {file} --dry-run\n0 study status {file}\n0 study table {file}"
    imported_nothing(commands, tmp_path)  # reads data that is there once; its digests are remembered
    done = imported_nothing(commands, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{name}-small: " in done.stdout


def test_a_wrong_study_is_refused(tmp_path):
    text = (STUDIES / "er-table-2.yaml").read_text()
    (tmp_path / "shared").symlink_to(STUDIES / "shared")
    (tmp_path / "wrong.yaml").write_text(text + "\nexplainers: [saliency?norn=l2]\n")
    done = imported_nothing("2 study run wrong.yaml --dry-run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrong.yaml" in done.stderr
