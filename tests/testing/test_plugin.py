"""The template package is installed, found by its ids, and keeps the contracts."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from expound.data.registry import find_installed
from forks import forge, redirect

PACKAGE = Path(__file__).parents[2] / "examples" / "plugin"


@pytest.fixture(scope="module")
def plugin_installation(tmp_path_factory):
    """The folder in which the package is installed, and a copy of the package."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    offline = ["--no-deps", "--no-build-isolation", "--offline", "--quiet", "--target", str(folder / "installed")]
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, *offline]
    subprocess.run([*command, str(folder / "source")], check=True)
    return folder / "installed", folder / "source"


def run_its_tests(installed, source, output):
    """Run the tests of the package as in a process that has it installed; write their output into a file."""
    redirect(os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT))
    sys.path.insert(0, str(installed))
    importlib.invalidate_caches()
    find_installed.cache_clear()
    os.chdir(source)
    return pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(source), "tests"])


def test_its_own_tests_pass(plugin_installation, tmp_path):
    with forge() as process:
        process.start(run_its_tests, *plugin_installation, tmp_path / "said")
        code, output = process.wait(), (tmp_path / "said").read_text()
    assert code == 0, output[-3000:]
    assert " passed" in output


def test_an_explainer_a_metric_an_objective_and_its_recipe_are_four_short_files():
    files = ("keep_one", "top_share", "confidence_penalty", "penalize_confidence")
    sources = [(PACKAGE / "src" / "expound_example" / f"{name}.py").read_text(encoding="utf-8") for name in files]
    assert sum(len(source.splitlines()) for source in sources) <= 150
    # nothing deeper than expound.X is imported
    assert not any(line.count(".") > 1 for source in sources for line in source.splitlines() if "from expound." in line)
