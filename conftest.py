"""Shared by all tests: one thread, a temporary cache, and the folders of real data, models and golden numbers."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import expound
from ray_cluster import cluster, ray_nodes

__all__ = ["cluster", "ray_nodes"]

# A third of the time of imports and collection is garbage collection, which finds nothing there.
gc.disable()
# As it is imported, bitsandbytes loads torch's compiler for functions of its own, which takes more than a second, also
# in the processes that tests start. Tests that compile a model unset it.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
CACHE = tempfile.TemporaryDirectory(prefix="expound-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
SHARED = Path(os.environ.get("EXPOUND_SHARED", Path(__file__).parents[1] / "shared"))
REAL = {"real_data", "golden", "minilm_path", "minilm", "golden_generation"}
"""Fixtures that need folders which a fresh machine does not have; their tests get the mark `real`."""
SLOW = (
    "cli/test_demo.py",
    "cli/test_stopping.py",
    "recipes/test_recipes.py",
    "studies/test_grid_of_runs.py",
    "test_package.py",
    "test_readme.py",
    "testing/test_recipe_contract.py",
    "training/test_cite.py",
    "training/test_criterion_trainer.py",
    "training/test_fine_tune.py",
    "training/test_masking_trainer.py",
    "training/test_regex_resume.py",
    "training/test_resume.py",
    "training/test_same_curve.py",
    "training/test_scaffold.py",
    "training/test_sharded.py",
    "training/test_steps.py",
)
"""Files that take more than half a minute; their tests get the mark `slow`, which `make quick` leaves out."""
PROGRAMS = {
    "browser": (shutil.which("chromium"), "chromium"),
    "postgres": (
        shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None),
        "postgresql",
    ),
}
"""By the mark of the tests that need it: a program, if it is there, and the Debian package that has it."""


def pytest_collection_modifyitems(config, items):
    """Mark tests, deselect those whose programs are missing, and run slow files first; retry browser tests once."""
    for item in items:
        if REAL & set(item.fixturenames):
            item.add_marker(pytest.mark.real)
        if item.path.as_posix().endswith(SLOW):
            item.add_marker(pytest.mark.slow)
    missing = {mark for mark, (program, _) in PROGRAMS.items() if program is None}
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in missing)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    # A worker gets whole files: one that takes minutes is not begun last.
    long = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("browser")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish():
    """Keep what the imports made out of later garbage collections: every training run ends with a full one."""
    # Here, since the process that starts the workers needs no torch and imports it for seconds.
    import torch

    torch.set_num_threads(1)
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Do the same with what a file of tests leaves: imports of its own, and models that other files share."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Name the missing programs."""
    for mark, (program, package) in PROGRAMS.items():
        if program is None:
            terminalreporter.line(f"tests marked '{mark}' were not run; to run them: apt-get install {package}")


@pytest.fixture(scope="session")
def programs() -> dict[str, str | None]:
    """The paths of the programs that some tests need, by the mark of these tests."""
    return {mark: program for mark, (program, _) in PROGRAMS.items()}


@pytest.fixture(scope="session")
def browser(programs):
    """Chromium without a window: one per process, since its driver has the process's only event loop."""
    from browsing import chromium

    with chromium(programs["browser"]) as found:
        yield found


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable, SHARED / default))
    # Corpora are not a part of the project: without them the tests marked `real` cannot run, and say so.
    if not folder.is_dir():
        pytest.skip(f"{variable} does not point to a folder, and {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora."""
    return _folder("EXPOUND_DATA", "data")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of numbers from published implementations."""
    return _folder("EXPOUND_GOLDEN", "golden")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """A real fine-tuned model's folder."""
    return _folder("EXPOUND_MODELS", "models") / "minilm-sst2"


@pytest.fixture(scope="session")
def minilm(minilm_path):
    """A real fine-tuned sentiment model (read only: tests must not change it)."""
    return expound.load(minilm_path, device="cpu")


@pytest.fixture(scope="session")
def golden_generation() -> Path:
    """The folder of numbers from published implementations for generated text, and of their tiny models."""
    return _folder("EXPOUND_GOLDEN_LLM", "golden-llm")
