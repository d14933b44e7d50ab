"""A result to look at, made once, and a folder where pictures of it are kept ($EXPOUND_PICTURES)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import expound
import families
from small import small

TEXTS = [
    "a moving film about a small town and its river",
    "the plot is dull , but nobody laughs at the jokes",
    "two women are holding packages in the rain",
    "great acting cannot save a tired story",
    "it is simply long",
    "nobody moves",
]
FEW = "decompx_linear,integrated_gradients?n_steps=4,occlusion,random,saliency,input_x_gradient,attention_last,alti"
METHODS = [*FEW.split(","), "attention_all", "scaled_attention", "attention_rollout", "globenc"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A tiny model on disk."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    made = small("bert", dtype=torch.float32)
    made.model.config.id2label = {0: "bad", 1: "mixed", 2: "good"}
    made.model.save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Six labeled sentences."""
    file = tmp_path_factory.mktemp("data") / "films.csv"
    file.write_text("text,label\n" + "".join(f'"{text}",good\n' for text in TEXTS), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def result(tmp_path_factory, model_folder, data):
    """Twelve methods compared on the sentences: the folder with which `expound compare` resumes."""
    folder = tmp_path_factory.mktemp("results") / "films"
    rows = expound.load_data(str(data), None, seed=0)
    expound.compare(expound.load(model_folder, device="cpu"), rows, METHODS, output_dir=folder)
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The folder for pictures: kept in CI, temporary elsewhere."""
    kept = os.environ.get("EXPOUND_PICTURES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
