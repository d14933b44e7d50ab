"""Commands that look at nothing but names, files and finished runs import no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

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
        "2 compare --model ./nowhere/x --data generated", "2 compare --model m --data csv:nowhere.csv",
        "2 compare --model m --data generated --methods occlusoin", "2 push nowhere user/name",
        "2 compare --model m --data generated --metrics acu",
        "2 compare --model m --data generated --metrics auc?k=1", "2 compare --model m --data generated --preset no",
        "2 compare --model m --data generatd", "2 compare --model m --data generated?sise=3",
        "2 explain hi --model m --methods integrated_gradients?n_stps=3", "2 explain hi --model m --device tpu",
        "2 explain hi --model m --methods parameterised_attention:./nowhere", "2 explain hi --model m --dtype float3",
        "2 explain --task generation --model m --prompt nowhere.txt", "2 demo --methods occlusoin",
        "2 train er_joint --guide rolout --config tiny --data generated --output-dir y",
        "2 train regex --teacher decompx_linea --config tiny --data generated --output-dir y",
        "2 train aml --metric nothing --model m --data generated --output-dir y",
        "2 train ivra --criteria nothing --config tiny --data generated --output-dir y",
        "2 train baseline --config tin --data generated --output-dir y",
        "2 train baseline --config tiny --data sst:nowhere --output-dir y",
        "2 train baseline --config tiny --set learning_rat=3 --data generated --output-dir y",
        "2 attack --model ./nowhere --data generated", "2 serve --model ./nowhere", "2 serve --result nowhere",
        "0 power --effect 0.7 --people 3 --runs 10",
    ]  # fmt: skip
    before = getrusage(RUSAGE_CHILDREN)
    done = imported_nothing("\n".join(commands), tmp_path)
    after = getrusage(RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime - before.ru_utime < 2 + len(commands) / 2
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
    done = imported_nothing("2 study run wrong.yaml --dry-run\n2 study run wrong.yaml", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrong.yaml" in done.stderr
