"""The template package is installed, found by its ids, and keeps the contracts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import expound

PACKAGE = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(scope="module")
def plugin_installation(tmp_path_factory):
    """The environment of a process that has the package installed, and a copy of the package."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(folder / "installed")]
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, str(folder / "source")], check=True)
    paths = [str(folder / "installed"), str(Path(expound.__file__).parents[1])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, folder / "source"


def test_its_own_tests_pass(plugin_installation):
    environment, source = plugin_installation
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_an_explainer_a_metric_an_objective_and_its_recipe_are_four_short_files():
    files = ("keep_one", "top_share", "confidence_penalty", "penalize_confidence")
    sources = [(PACKAGE / "src" / "expound_example" / f"{name}.py").read_text(encoding="utf-8") for name in files]
    assert sum(len(source.splitlines()) for source in sources) <= 150
    # nothing deeper than expound.X is imported
    assert not any(line.count(".") > 1 for source in sources for line in source.splitlines() if "from expound." in line)
