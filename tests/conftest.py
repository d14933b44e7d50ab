"""What all tests share: the one thread they run on, and where real data, models and golden numbers are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import exegete

torch.set_num_threads(1)
SHARED = Path(__file__).parents[2] / "shared"


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
