"""Help, lists and misspelt options import no torch; wrong names and values are refused before a model is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

import expound
from expound.cli import main
from expound.recipes import RECIPES

COMMANDS = """
import sys
from expound.cli import main
for line in sys.stdin.read().splitlines():
    code, *words = line.split()
    assert main(words) == int(code), line
    found = {"torch", "transformers", "captum", "sklearn", "optuna", "datasets"} & sys.modules.keys()
    assert not found, (line, found)
"""


def run_without_torch(commands, folder):
    environment = os.environ | {"PYTHONPATH": str(Path(expound.__file__).parents[1]), "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", COMMANDS], input=commands, cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_help_and_misspelt_options_import_no_torch(tmp_path):
    commands = [
        "0 --help", "0 --version", "0 study run --help", "0 datasets", "2 train nothing", "2 explain",
        "2 compare --limit few", "2 compare --model ./nowhere/x --data generated",
        "2 compare --model m --data csv:nowhere.csv", "2 push nowhere user/name", "2 compare --model m --data generatd",
        "2 compare --model m --data generated?sise=3", "2 explain hi --model m --device tpu",
        "2 explain hi --model m --dtype float3", "2 explain --task generation --model m --prompt nowhere.txt",
        "2 attack --model ./nowhere --data generated", "2 serve --model ./nowhere",
        "2 train er_joint --explainer rolout --config tiny --data generated --output-dir y",
        "2 train aml --metric nothing --model m --data generated --output-dir y",
        "2 train custom --objectives cross_entropi --config tiny --data generated --output-dir y",
        "2 train baseline --config tiny --set learning_rat=3 --data generated --output-dir y",
        "2 train baseline --config tiny --set learning_rate=fast --data generated --output-dir y",
        "2 train baseline --model ./nowhere --data generated --output-dir y",
        "2 train baseline --config tiny --data sst:nowhere --output-dir y",
        "2 people create new --result nowhere", "0 people power --effect 0.7 --people 3 --runs 10",
    ]  # fmt: skip
    before = getrusage(RUSAGE_CHILDREN)
    done = run_without_torch("\n".join(commands), tmp_path)
    after = getrusage(RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime - before.ru_utime < 2 + len(commands) / 2


def test_the_help_of_training_shows_every_recipe_and_its_departures_from_the_paper(capsys):
    assert main(["train", "--help"]) == 0
    listed = capsys.readouterr().out
    for name in RECIPES:
        assert name in listed
        assert main(["train", name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert ("Departures from the paper" in shown) == bool(RECIPES[name]().departures)
    assert "Guide explanations towards human rationales" in listed


@pytest.mark.parametrize(
    "command",
    [
        "train", "train er_joint --explainer", "train er_joint --data x",
        "train baseline --config tin --data generated --output-dir y",
        "study run nowhere.py", "study status nowhere",
        "compare --model m --data generated --methods occlusoin", "compare --model m --data generated --metrics acu",
        "compare --model m --data generated --metrics rationale_auc?k=1",
        "compare --model m --data generated --preset no",
        "explain hi --model m --methods integrated_gradients?n_stps=3", "demo --methods occlusoin",
        "explain hi --model m --methods parameterized_attention:./nowhere",
        "train regex --explainer decompx_linea --config tiny --data generated --output-dir y",
        "train ivra --criteria nothing --config tiny --data generated --output-dir y",
    ],
)  # fmt: skip
def test_wrong_names_and_values_are_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2


def test_a_wrong_study_is_refused(tmp_path, monkeypatch, capsys):
    text = "from expound_papers.study import Data, Model, register\n\n\n@register\ndef wrong(study):\n    runs = "
    text += "study.train('as it is', None, None, Model('tiny', 'tiny'))\n"
    text += "    study.judge('all', runs, Data('films', 'generated'), {'S': 'saliency?norn=l2'})\n"
    (tmp_path / "wrong.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["study", "run", "wrong.py", "--dry-run"]) == 2
    assert main(["study", "run", "wrong.py"]) == 2
    assert "wrong.py:7: unknown parameter of saliency 'norn'" in " ".join(capsys.readouterr().err.split())
