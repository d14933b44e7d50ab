"""One registry for every kind of part: ids without imports, and parts of installed packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import expound
from expound.cli import main
from expound.data import READERS
from expound.data.cards import DataCard, MethodCard, MetricCard
from expound.data.registry import Registry, find_installed, parse_spec
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS, explainer, list_methods
from expound.metrics import METRICS, metric
from expound.objectives import OBJECTIVES
from expound.recipes import RECIPES

REGISTRIES = {registry.group: registry for registry in (EXPLAINERS, METRICS, OBJECTIVES, RECIPES, READERS)}
CARDS = {"expound.explainers": MethodCard, "expound.metrics": MetricCard, "expound.readers": DataCard}
LISTS = """
import sys
from expound.cli import main
assert main(sys.argv[1:]) == 0
heavy = {"torch", "transformers", "datasets", "captum", "sklearn", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_id_is_the_name_of_each_part():
    for group, registry in REGISTRIES.items():
        for name, part in registry.items():
            found = part.card.name if group in CARDS else getattr(part, "name", part.__name__)
            assert found == name, group


def test_the_list_of_datasets_imports_nothing_heavy():
    path = os.environ | {"PYTHONPATH": str(Path(expound.__file__).parents[1])}
    command = [sys.executable, "-c", LISTS, "datasets"]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sst" in done.stdout


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with parts of its own, one of them broken, and two with the ids of native ones."""
    (tmp_path / "plugged.py").write_text(
        "from expound.explainers.control import Random\n"
        "from expound.metrics.conciseness import ImportantTokens\n"
        "class Mine(Random):\n    card = Random.card.__class__(name='mine', family='control', cost='0')\n"
        "class Few(ImportantTokens):\n    card = ImportantTokens.card.__class__(\n"
        "        name='few', family='conciseness', higher_is_better=False\n    )\n"
        "class Bare:\n    pass\n"
    )
    info = tmp_path / "plugged-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[expound.explainers]\nmine = plugged:Mine\nrandom = plugged:Mine\nbroken = plugged:Nowhere\n"
        "other_id = plugged:Mine\nbare = plugged:Bare\nabsent = plugged_without:Part\n"
        "[expound.metrics]\nfew = plugged:Few\nrationale_auc = plugged:Few\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    find_installed.cache_clear()
    yield
    find_installed.cache_clear()
    sys.modules.pop("plugged", None)


@pytest.mark.usefixtures("package")
def test_an_installed_package_adds_parts_and_replaces_none(caplog):
    assert type(explainer("mine?seed=3")).__module__ == "plugged"
    assert metric("few?thresholds=0.5").thresholds == (0.5,)
    assert type(explainer("random")).__module__ == "expound.explainers.control"
    assert METRICS["rationale_auc"].__module__ == "expound.metrics.plausibility"
    assert set(list(EXPLAINERS)[-5:]) == {"broken", "mine", "other_id", "bare", "absent"}
    assert len(EXPLAINERS) == len(EXPLAINERS.native) + 5
    assert "mine" in set(list_methods()["name"])
    assert "broken" not in set(list_methods()["name"])
    assert "plugged:Nowhere" in caplog.text
    with pytest.raises(ExpoundError, match=r"method 'broken' of an installed package \(plugged:Nowhere\)"):
        explainer("broken")
    with pytest.raises(ExpoundError, match="Did you mean 'mine'"):
        explainer("mien")


@pytest.mark.usefixtures("package")
def test_an_id_that_is_not_the_name_on_the_card_is_refused():
    message = "the package calls it other_id, its card mine: make them one"
    with pytest.raises(ExpoundError, match=message):
        explainer("other_id")
    assert message in EXPLAINERS.find_broken(MethodCard)["other_id"]


@pytest.mark.usefixtures("package")
def test_lists_and_doctor_name_the_parts_that_cannot_be_used(capsys):
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out.splitlines()[-1]
    assert listed.startswith("Cannot be loaded: ")
    assert all(name in listed for name in ("broken", "other_id", "bare", "absent"))
    assert main(["doctor"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "No module named 'plugged_without'" in said
    assert "(plugged:Bare): it has no `card: MethodCard`" in said
    assert main(["metrics"]) == 0
    assert "Cannot be loaded" not in capsys.readouterr().out


def test_a_card_of_an_unknown_family_is_refused():
    with pytest.raises(ExpoundError, match=r"unknown family of mine 'gradient'\. Did you mean 'gradients'"):
        MethodCard(name="mine", family="gradient", cost="F")
    with pytest.raises(ExpoundError, match=r"unknown family of few 'brevity'.*conciseness"):
        MetricCard(name="few", family="brevity", higher_is_better=True)


def test_packages_are_looked_for_once(monkeypatch):
    calls = []
    monkeypatch.setattr("expound.data.registry.entry_points", lambda group: calls.append(group) or [])
    find_installed.cache_clear()
    for _ in range(3):
        assert "nothing" not in EXPLAINERS
        assert len(list(METRICS)) == len(METRICS)
    assert sorted(calls) == ["expound.explainers", "expound.metrics"]
    find_installed.cache_clear()


def test_a_registry_looks_up_and_makes_parts():
    registry = Registry("shape", "expound.shapes", {"random": "control:Random"}, package="expound.explainers")
    assert registry["random"] is EXPLAINERS["random"]
    assert registry.get("square") is None
    assert registry.make("random?seed=1", seed=2) == explainer("random", seed=2)
    with pytest.raises(ExpoundError, match=r"unknown shape 'rndom'. Did you mean 'random'\? Valid choices: random"):
        registry["rndom"]


def test_readers_are_opened_without_heavy_imports():
    script = (
        "import sys\nfrom expound.data.load import open_reader\nfrom expound.data.readers.registry import READERS\n"
        "[READERS[name] for name in READERS]\nopen_reader('generated?task=pairs&size=9', seed=1)\n"
        "assert not {'torch', 'transformers', 'datasets', 'pandas', 'sklearn'} & set(sys.modules), sys.modules.keys()"
    )
    path = os.environ | {"PYTHONPATH": str(Path(expound.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], env=path, check=True)


def test_signs_of_addresses_in_a_value_are_kept_or_can_be_written():
    path = "/models/c++ & 50%/llama"
    spec = f"simulatability?student={path.replace('&', '%26')}&margin=0.5&hard"
    assert parse_spec(spec) == ("simulatability", {"student": path, "margin": "0.5", "hard": "true"})
    assert parse_spec("lime?model=a%2520b") == ("lime", {"model": "a%20b"})
    for wrong in ("lime?=3", "lime?a=1&&b=2"):
        with pytest.raises(ExpoundError, match="expected parameters as name"):
            parse_spec(wrong)
