"""Guided training in steps of eight sentences, in one or several processes; losses and weights go to files.

Run by `test_same_curve.py`, alone and under torchrun.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset, Features
from safetensors.torch import save_file

import expound
import families
from expound.data import generated_tokenizer
from expound.models import ExplainedModel
from expound.objectives import Constraint, CrossEntropy, RationaleAlignment
from runs import load_generated, trainer


def data(count=32):
    """Return sentences of uneven length, some with a rationale: the parts of a step have very different weights."""
    rows = load_generated(size=200).select(range(count))
    texts = [text if i % 2 else f"{text} {text}" for i, text in enumerate(rows["text"][:])]
    marks = [spans if i % 4 in (0, 1, 3) and i < 24 else None for i, spans in enumerate(rows["rationale"][:])]
    columns = {"text": texts, "label": rows["label"][:], "rationale": marks}
    types = Features({name: rows.features[name] for name in columns})
    return Dataset.from_dict(columns, features=types)


def small_model():
    """Return a model that is the same in every process: its tokenizer is not trained here."""
    tokenizer = generated_tokenizer()
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ExplainedModel(families.tiny("bert", num_labels=2, vocab_size=len(tokenizer), **quiet), tokenizer)


def prepare(folder: Path, guide: str, parts: int = 1, **arguments):
    """Return a trainer of six steps."""
    torch.set_num_threads(1)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    constrained = Constraint(RationaleAlignment(expound.explainer(guide)), bound=0.02, multiplier_learning_rate=0.5)
    return trainer(
        folder, small_model(), data(), objectives=[CrossEntropy(), constrained], optim="sgd", learning_rate=0.1,
        per_device_train_batch_size=8 // processes // parts, gradient_accumulation_steps=parts, max_steps=6,
        train_sampling_strategy="group_by_length", max_grad_norm=0.0,
        ddp_backend="gloo" if processes > 1 else None, **arguments,
    )  # fmt: skip


def run(folder: Path, guide: str, parts: int = 1, **arguments) -> None:
    """Train for six steps; the first process writes the logged values and the weights to the folder."""
    loop = prepare(folder, guide, parts, **arguments)
    loop.train()
    if loop.is_world_process_zero():
        names = ("loss", "cross_entropy", "rationale_alignment", "rationale_alignment_multiplier")
        curve = [[entry[name] for name in names] for entry in loop.state.log_history if "loss" in entry]
        (folder / "curve.json").write_text(json.dumps({"processes": loop.args.world_size, "curve": curve}))
        end = loop.module.explained.model.state_dict()
        save_file({name: value.contiguous() for name, value in end.items()}, folder / "end.safetensors")
    loop.accelerator.wait_for_everyone()
    loop.accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
    os._exit(0)  # all is written; a thread of gloo that still runs would abort an orderly exit
