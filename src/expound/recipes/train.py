"""`expound.train`: train a model from Python, with explanations as part of the loss."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Pipeline, TrainingArguments

from expound.data import load_data
from expound.data.in_memory import is_column, read_in_memory
from expound.data.readers.columns import ColumnOptions
from expound.data.registry import parse_spec
from expound.errors import ExpoundError
from expound.models import ExplainedModel, load
from expound.recipes.base import Recipe
from expound.recipes.registry import RECIPES
from expound.recipes.registry import recipe as make_recipe
from expound.recipes.search import Search
from expound.training import RunOptions, TrainResult

DEV_NAMES = ("dev", "validation", "val", "valid")


def train(
    model: Any,
    data: Any,
    recipe: str | Recipe = "er_joint",
    *,
    dev: Any = None,
    output_dir: str | Path | None = None,
    preset: str | None = None,
    args: TrainingArguments | Mapping[str, Any] | None = None,
    options: RunOptions | Mapping[str, Any] | None = None,
    search: Mapping[str, Iterable[Any]] | None = None,
    **params: Any,
) -> TrainResult:
    """Train a model by a recipe, keep the best checkpoint on the dev split, and return it with its metrics.

    A second call with the same arguments resumes an interrupted run and returns a finished one without training again.

    Example:
        import expound
        from expound.explainers import InputXGradient

        result = expound.train(
            "bert-base-uncased", "sst:data/sst", "er_joint", explainer=InputXGradient(), weight=10.0,
            output_dir="runs/er", args={"num_train_epochs": 3}
        )
        print(result.metrics)
        print(expound.attribute(result.model, ["a gripping film"], "input_x_gradient"))

    Args:
        model: the model to start from: a folder, a hub name, "tiny" or "small" (from scratch), a configuration, a
            Hugging Face model, `(model, tokenizer)`, a pipeline, or an `ExplainedModel`. A model that is passed as an
            object is trained in place.
        data: a spec for `expound.load_data`, whose splits train and dev are used; rows in any form that
            `expound.attribute` takes, as a pandas DataFrame, a dataset or a list of dicts; a mapping with the splits
            train and dev (or validation); or the pair `(train, dev)`.
        recipe: the id of a recipe, see `expound.list_recipes`, or a `Recipe`.
        dev: the data on which the best checkpoint is chosen, if `data` does not contain it. Default for rows: 10 % of
            them; 80 % are trained on, and 10 % are left for a test, as with a file without splits.
        output_dir: the folder for the model, its metrics and its history. Default: `args.output_dir`.
        preset: `paper`: the values of the recipe's paper for whatever is not given, see `expound.recipe`.
        args: arguments of transformers' Trainer by name, such as `{"num_train_epochs": 3}`; or `TrainingArguments`, of
            which values that differ from their own defaults override the recipe's.
        options: options of the run, a `RunOptions` or some of them by name, such as `{"max_length": 128, "seed": 1}`.
        search: values of parameters of the recipe, options of the run or arguments of the Trainer, such as
            `{"weight": [0.1, 1, 10], "learning_rate": [1e-5, 3e-5]}`. Each combination is trained in
            `output_dir`/search, and the best is copied to `output_dir`: by the metric that the recipe exists for, on
            dev, with accuracy at most .01 below the best. The record there, `expound_run.json`, has all figures.
        params: parameters of the recipe, such as `explainer` and `weight`, and columns of a table: `text_column`,
            `text_pair_column`, `label_column`, `rationale_column` (marked characters as [[start, end], …], marked
            words, or a 0 or 1 for each word).

    Returns:
        `model`, ready for `expound.attribute`; `metrics` on the dev split; `history`, everything that was logged; and
        `output_dir`, from which `expound.load` reads the model again.

    Raises:
        ExpoundError: an unknown recipe or parameter, a model or data that the recipe cannot train, or a search in which
            no run can be chosen.
    """
    own = inspect.signature(RECIPES[parse_spec(recipe)[0]]).parameters if isinstance(recipe, str) else ()
    _check_owners(own, params)
    roles = [field.name for field in fields(ColumnOptions) if field.name not in own]
    columns = {name: params.pop(name) for name in roles if name in params}

    def change_recipe(**changes: Any) -> Recipe:
        return make_recipe(recipe, preset=preset, **params | changes)

    searched = None if search is None else Search.create(change_recipe, search, own)
    method = searched.candidates[0].recipe if searched else change_recipe()
    run_options = options if isinstance(options, RunOptions) else RunOptions.with_overrides(None, options or {})
    if isinstance(args, TrainingArguments):
        output_dir, args = output_dir or args.output_dir, _get_changed(args)
    arguments = {**run_options.arguments, **(args or {})}
    run_options = replace(run_options, seed=arguments.pop("seed", run_options.seed), arguments=arguments)
    if output_dir is None:
        raise ExpoundError("expected a folder for the trained model: pass output_dir=")
    train_data, dev_data = _find_splits(data, dev, run_options.seed, columns)
    start, processor = _unwrap_model(model, method)
    if run_options.processing_class is None:
        run_options = replace(run_options, processing_class=processor)
    return (searched or method).train(start, train_data, dev_data, output_dir, run_options)


def _check_owners(own: Collection[str], params: Mapping[str, Any]) -> None:
    """Raise ExpoundError for a parameter that is none of the recipe's `own`, but one of the run."""
    for owner, kind in (("args", TrainingArguments), ("options", RunOptions)):
        for name in params:
            if name not in own and name in {field.name for field in fields(kind)}:
                raise ExpoundError(f"{name} is no parameter of the recipe: pass {owner}={{{name!r}: …}}")


def _get_changed(args: TrainingArguments) -> dict[str, Any]:
    """Return the arguments that differ from transformers' defaults, by name."""
    # Some defaults depend on the machine, or follow from the folder, so they are read from an object.
    defaults = TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu)
    changed = {}
    for field in fields(TrainingArguments):
        value = getattr(args, field.name)
        if field.init and field.name != "output_dir" and value != getattr(defaults, field.name):
            changed[field.name] = value
    if args.use_cpu:
        changed["use_cpu"] = True
    return changed


def _find_splits(data: Any, dev: Any, seed: int, columns: Mapping[str, Any]) -> tuple[Dataset, Dataset]:
    """Return the data to train on and the data to choose the best checkpoint on."""
    data, dev = (str(part) if isinstance(part, Path) else part for part in (data, dev))
    train, own_dev = data, None
    if isinstance(data, str):
        train, own_dev = load_data(data, "train", seed=seed, **columns), data
    elif isinstance(data, tuple) and len(data) == 2:
        train, own_dev = data
    elif isinstance(data, Mapping) and ("train" in data or not all(map(is_column, data.values()))):
        if "train" not in data:
            raise ExpoundError(f"expected the splits train and dev, got {', '.join(map(str, data)) or 'none'}")
        train, own_dev = data["train"], next((data[name] for name in DEV_NAMES if name in data), None)
    if dev is None:
        dev = own_dev
    if isinstance(dev, str):
        dev = load_data(dev, "dev", seed=seed, **columns)
    # What `load_data` returns has the canonical columns instead of those that were named.
    named = {} if isinstance(data, str) else columns
    return read_in_memory(train, dev, seed=seed, **named)


def _unwrap_model(model: Any, recipe: Recipe) -> tuple[Any, Any]:
    """Unwrap a pipeline, ExplainedModel or tuple into the model and its tokenizer or image processor (or None)."""
    if isinstance(model, Pipeline):
        model = load(model)
    if isinstance(model, ExplainedModel):
        # a recipe that only explains the model keeps its task, such as the template of a prompted classifier
        if recipe.keeps_model:
            return model, None
        if model.black_box_reason:
            raise ExpoundError("a model that gives answers only cannot be trained: give one with its weights")
        return model.model, model.processing_class
    if isinstance(model, tuple):
        if len(model) != 2:
            raise ExpoundError(f"expected (model, tokenizer), got a tuple of {len(model)}")
        return model
    return model, None
