"""A training of a study as a cell: its configuration, which is its address, and where its data and model are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from expound.errors import ExpoundError
from expound_papers.runs import recipe_configs
from expound_papers.runs.execution import train_model
from expound_papers.runs.store import Cell
from expound_papers.study.addresses import AddressBook, unique_keys
from expound_papers.study.parts import Model, Place, Runs, Training, make_title, to_dict

RUN_OPTIONS = (
    "masked_share",
    "head_lr_multiplier",
    "head_dropout",
    "early_stopping_threshold",
    "log_gradient_norms",
    "lora_rank",
)


@dataclass(frozen=True)
class TrainingCall:
    """What all runs of one call of `Study.train` share: its arguments, and the study's `preset` and arguments."""

    runs: Runs
    start: Runs | None
    arguments: Mapping[str, Any]
    preset: str | None
    patience: int | None
    options: Mapping[str, Any]


def make_training(book: AddressBook, call: TrainingCall, data: Training, model: Model, place: Place) -> Cell:
    """Return the cell of one training."""
    runs, start = call.runs, call.start
    other = start.cells[start.find_place(place)] if start else None
    # The study's arguments are the weakest, then those of the training data, then the run's; None removes one.
    arguments = {**call.arguments, **data.arguments, **runs.arguments}
    arguments = {name: value for name, value in arguments.items() if value is not None}
    values, needs, parts = book.resolve(runs.parameters, place)
    source = "the model of a run" if start else model.source
    recipe = str(runs.recipe)
    # The names in a configuration decide the cell's address: renaming one would orphan every finished cell.
    config = recipe_configs.resolve_config(recipe, values, arguments, source, call.preset) | {
        "kind": "train",
        "train": book.add_data("datasets", data.train).address,
        "dev": book.add_data("datasets", data.dev).address,
        "model": book.address_model(model, place, start),
        "max_length": model.max_length,
        "early_stopping_patience": call.patience,
        "seed": place.seed,
    }
    # Keys that came later are left out at their default, so that older cells keep their addresses.
    if call.options:
        config["options"] = dict(call.options)
    if other is None and model.prompt is not None:
        if recipe not in recipe_configs.EXPLAINING:
            explaining = ", ".join(recipe_configs.EXPLAINING)
            raise ExpoundError(f"a prompted model stays as it is: {recipe} trains it ({explaining} do not)")
        config["prompt"] = to_dict(model.prompt)
    # Arguments that the outcome does not depend on, as the number of data loader workers, are no part of the key.
    others = {key: value for key, value in arguments.items() if key not in config["arguments"]}
    where = {"train": data.train.resolve(), "dev": data.dev.resolve(), "model": model.source_for_seed(place.seed)}
    sources = where | {"arguments": others, "parts": parts}
    return Cell(config, train_model, make_title(runs.name, place), unique_keys([*needs, other]), sources)
