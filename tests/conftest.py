"""What all tests share: one thread, a cache of their own, and where real data, models and golden numbers are."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

import exegete

torch.set_num_threads(1)
CACHE = tempfile.TemporaryDirectory(prefix="exegete-tests-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
SHARED = Path(__file__).parents[2] / "shared"
PROGRAMS = {
    "browser": (shutil.which("chromium"), "chromium"),
    "postgres": (
        shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None),
        "postgresql",
    ),
}
"""By the mark of the tests that need it: a program, if it is there, and the Debian package that has it."""


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests of programs that are not there; browsers, which are late now and then, get a second try."""
    missing = {mark for mark, (program, _) in PROGRAMS.items() if program is None}
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in missing)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter):
    """Says which programs were missed."""
    for mark, (program, package) in PROGRAMS.items():
        if program is None:
            terminalreporter.line(f"tests marked '{mark}' were left out; they run after: apt-get install {package}")


@pytest.fixture(scope="session")
def programs() -> dict[str, str | None]:
    """Where the programs are that some tests need, by their mark."""
    return {mark: program for mark, (program, _) in PROGRAMS.items()}


@pytest.fixture(scope="session")
def browser(programs):
    """Chromium, without a window: one a process, since its driver has the process's only event loop."""
    from browsing import chromium

    with chromium(programs["browser"]) as found:
        yield found


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable, SHARED / default))
    if not folder.is_dir():
        pytest.skip(f"{variable} does not point to a folder, and {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora."""
    return _folder("EXEGETE_DATA", "data")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of numbers from published implementations."""
    return _folder("EXEGETE_GOLDEN", "golden")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """A real fine-tuned model's folder."""
    return _folder("EXEGETE_MODELS", "models") / "minilm-sst2"


@pytest.fixture(scope="session")
def minilm(minilm_path):
    """A real fine-tuned sentiment model (read only: tests must not change it)."""
    return exegete.load(minilm_path, device="cpu")


@pytest.fixture(scope="session")
def golden_generation() -> Path:
    """The folder of numbers from published implementations for generated text, and of their tiny models."""
    return _folder("EXEGETE_GOLDEN_LLM", "golden-llm")
