"""Small data and models for the tests of training."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, GradientState
from datasets import ClassLabel, Dataset, Features, List, Value
from safetensors.torch import load_file
from transformers import TrainingArguments

import expound
import families
from expound.models import ExplainedModel
from expound.objectives import CrossEntropy
from expound.training import ObjectiveTrainer, TrainingModule
from forks import find_free_port

ARGUMENTS = {"per_device_train_batch_size": 16, "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}


@functools.cache
def load_generated(task="sentiment", split="train", size=80):
    return expound.load_data(f"generated?task={task}&size={size}", split)


def pairs(count=96):
    """Pairs whose class is the color that the second text names."""
    colors, things = ["red", "blue", "green"], ["door", "roof", "wall", "fence"]
    rows = {"text": [], "text_pair": [], "label": []}
    for i in range(count):
        thing, color = things[i // 3 % 4], i % 3
        rows["text"].append(f"which color is the {thing}")
        rows["text_pair"].append(f"the house has a {thing} that is {colors[color]}")
        rows["label"].append(color)
    types = {"text": Value("string"), "text_pair": Value("string"), "label": ClassLabel(names=colors)}
    return Dataset.from_dict(rows, features=Features(types))


def answers(count=48):
    """Questions on a context; the answer follows the word that the question asks for, every fourth has no answer."""
    rows = {"text": [], "text_pair": [], "answer": []}
    colors = ["red", "blue", "green", "grey"]
    for i in range(count):
        things = [("door", colors[i % 4]), ("roof", colors[(i // 4 + i) % 4])]
        asked, answer = things[i % 2]
        context = "the house has " + " and ".join(f"a {thing} {color}" for thing, color in things)
        start = context.index(f"{asked} {answer}") + len(asked) + 1
        rows["text"].append(f"what is the {'fence' if i % 4 == 3 else asked}")
        rows["text_pair"].append(context)
        rows["answer"].append([] if i % 4 == 3 else [[start, start + len(answer)]])
    types = {"text": Value("string"), "text_pair": Value("string"), "answer": List(List(Value("int32")))}
    return Dataset.from_dict(rows, features=Features(types))


def sentences(count=8, classes=3):
    """Real-looking texts of very uneven length."""
    texts = [
        " ".join([families.SENTENCES[i % len(families.SENTENCES)]] * (1 + 3 * (i % 3)))[: 20 + 45 * (i % 5)]
        for i in range(count)
    ]
    types = Features({"text": Value("string"), "label": ClassLabel(names=["no", "maybe", "yes"][:classes])})
    return Dataset.from_dict({"text": texts, "label": [i % classes for i in range(count)]}, features=types)


def bert(**changes):
    """A random tiny model with its tokenizer; without dropout unless asked for."""
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ExplainedModel(families.tiny("bert", **(quiet | changes)), families.tokenizer("bert"))


def trainer(folder: Path, model, data, *, objectives=None, **arguments):
    """Return an ObjectiveTrainer that trains and evaluates on the data."""
    chosen = {"report_to": "none", "save_strategy": "no", "lr_scheduler_type": "constant"} | ARGUMENTS | arguments
    args = TrainingArguments(output_dir=str(folder), **chosen)
    return ObjectiveTrainer(
        TrainingModule(model, objectives or [CrossEntropy()]), args, train_dataset=data, eval_dataset=data
    )


def run_in_two_processes(script: str, *given: object) -> None:
    """Run a script of this folder in two processes, with the variables that torchrun sets for them."""
    torch.multiprocessing.start_processes(_run_script, (script, given, find_free_port()), 2, start_method="fork")


def _run_script(rank: int, script: str, given: tuple[object, ...], port: int) -> None:
    # A fork need not import anything again, but has what accelerate found out about the first process.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = [script, *map(str, given)]
    runpy.run_path(str(Path(__file__).with_name(script)), run_name="__main__")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
