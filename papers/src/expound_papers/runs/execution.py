"""Executes the two kinds of cells: training a model, and judging a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset

from expound.data.provenance import RECORD, OtherRunError, write_json
from expound.errors import ExpoundError
from expound.evaluation.compare.compare import compare
from expound.evaluation.compare.comparison import Comparison
from expound.explainers import Explainer, explainer
from expound.explainers.registry import add_seed
from expound.models import ExplainedModel, load
from expound.models.state import use_full_attention
from expound.training import RunOptions
from expound.training.loop.data import is_generation_data
from expound.training.loop.run import HISTORY, METRICS
from expound_papers.protocols import registry as protocols
from expound_papers.protocols.performance import evaluate_performance
from expound_papers.runs import recipe_configs, sources
from expound_papers.runs.layer_plausibility import plausibility_by_layer
from expound_papers.runs.noisy_control import BestOfNoisy
from expound_papers.runs.run_files import (
    ATTRIBUTIONS,
    CURVES,
    FIGURES,
    LAYERS,
    NOISY,
    OWN_RUN,
    PREDICTIONS,
    RESULTS,
    RUN_IN_SPEC,
    TRAINED,
)
from expound_papers.runs.store import Cell, Store, Workspace

TEMPORARY_FILES = (".*", "checkpoint-*", "events.out.*")


def train_model(cell: Cell, space: Workspace) -> None:
    """Train a model into `space.output`, which then holds what `expound.load` takes, without checkpoints.

    Raises:
        Stopped: a signal came; the newest checkpoint is kept in `space.work`.
    """
    config, sources_of_cell, folder = cell.config, cell.sources, space.work / "run"
    _remove_unreadable_run(folder)
    recipe = recipe_configs.make_recipe(config["recipe"], _fill_parameters(config["parameters"], cell, space.store))
    arguments = {**config["arguments"], "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}
    options = RunOptions(
        arguments=arguments | sources_of_cell["arguments"],
        seed=config["seed"],
        max_length=config["max_length"],
        early_stopping_patience=config["early_stopping_patience"],
        **config.get("options", {}),
    )
    train, dev = sources.load_dataset(sources_of_cell["train"]), sources.load_dataset(sources_of_cell["dev"])
    result = recipe.train(_start_model(cell, space.store), train, dev, folder, options)
    result.require_finished("training")
    # A copy, not a move: if this process is killed now, the next attempt finds the finished training and copies again.
    shutil.copytree(folder, space.output, ignore=shutil.ignore_patterns(*TEMPORARY_FILES), dirs_exist_ok=True)


def judge_model(cell: Cell, space: Workspace) -> None:
    """Judge a model on a dataset: write its figures and predictions, and the results of the judgement's explainers."""
    config = cell.config
    data = sources.load_dataset(cell.sources["dataset"])
    model = load(_start_model(cell, space.store), task="generation" if is_generation_data(data) else None)
    indices = sample_examples(len(data), config.get("limit"))
    data = data.select(indices)
    figures, predictions = evaluate_performance(model, data)
    predictions.assign(example=indices).to_parquet(space.output / PREDICTIONS, index=False)
    if "protocol" in config:
        protocol_results = _run_protocol(cell, space, model, data)
        if isinstance(protocol_results, pd.DataFrame):
            protocol_results.to_parquet(space.output / RESULTS, index=False)
        else:
            figures |= protocol_results
    write_json(space.output / FIGURES, figures)
    # A protocol with explainers has used them itself.
    if not config["explainers"] or protocols.uses_explainers(config.get("protocol", {}).get("name")):
        return
    with use_full_attention(model.model) if "full_attention" in config else nullcontext():
        _judge_explainers(cell, space, model, data, indices)


def _judge_explainers(
    cell: Cell, space: Workspace, model: ExplainedModel, data: Dataset, indices: Sequence[int]
) -> None:
    """Write the results of a judgement's explainers; `indices` are the examples' numbers in the whole dataset."""
    config, explainers = cell.config, _make_explainers(cell, space.store, model)
    comparison = _run_comparison(cell, space.work / "comparison", space.store, model, data, explainers)
    # Results are stored under the study's specs, as a spec with a run's folder differs from machine to machine.
    # The last cards are the cost of each method, which has no spec.
    columns = {card.name: spec for card, spec in zip(comparison.cards, config["metrics"], strict=False)}
    examples = {"example": dict(enumerate(indices))}
    results = comparison.results.rename(columns=columns).replace(examples)
    results.to_parquet(space.output / RESULTS, index=False)
    metrics = comparison.curves["metric"].replace(columns)
    curves = comparison.curves.assign(metric=metrics).replace(examples)
    curves.to_parquet(space.output / CURVES, index=False)
    if config["keep_attributions"]:
        comparison.attributions.save(space.output / ATTRIBUTIONS)
    if config["layers"]:
        by_layer = plausibility_by_layer(
            model,
            data,
            explainers,
            list(config["metrics"]),
            config["target"],
            config["seed"],
            special_tokens="special_tokens" in config,
        )
        by_layer.to_parquet(space.output / LAYERS, index=False)


def sample_examples(count: int, limit: int | None) -> list[int]:
    """Return the indices, in order, of `limit` random examples among `count`; all of them without a limit."""
    # The first of one fixed permutation, so that a smaller sample is part of a larger one.
    return sorted(np.random.default_rng(0).permutation(count)[:limit].tolist())


def _run_protocol(
    cell: Cell, space: Workspace, model: ExplainedModel, data: Dataset
) -> Mapping[str, float] | pd.DataFrame:
    """Return the figures of a judgement's protocol, with methods named as results are stored."""
    protocol = cell.config["protocol"]
    stored_names = {_fill_spec(cell, name, space.store): name for name in cell.config["explainers"]}
    options = _fill_parameters(protocol["options"], cell, space.store)
    figures = protocols.run_protocol(
        protocol["name"],
        model,
        data,
        options,
        seed=cell.config["seed"],
        explainers=list(stored_names),
        folder=space.work / "protocol",
    )
    if not isinstance(figures, pd.DataFrame):
        return figures
    return figures.replace({"method": stored_names})


def _run_comparison(
    cell: Cell,
    folder: Path,
    store: Store,
    model: ExplainedModel,
    data: Dataset,
    explainers: Mapping[str, str | Explainer],
) -> Comparison:
    """Run the comparison of a judgement; it resumes a stopped one in `folder`."""
    config = cell.config
    metrics = [_fill_metric(spec, facts, store) for spec, facts in config["metrics"].items()]
    resume = partial(
        compare, model, data, explainers, metrics, checkpoint_dir=folder, target=config["target"], seed=config["seed"],
        special_tokens="special_tokens" in config, unit=config.get("unit"), allow_missing_rationales=True,
    )  # fmt: skip
    _remove_unreadable_comparison(folder)
    try:
        return resume()
    except OtherRunError:
        # The cell's key does not contain the library's version, so the parts may come from another version.
        shutil.rmtree(folder)
        return resume()


def _fill_metric(spec: str, facts: Mapping[str, Any], store: Store) -> str:
    """Return a metric's spec with folders in place of the runs that it names."""
    return RUN_IN_SPEC.sub(lambda match: str(store.require_folder(facts["runs"][match[1]])), spec)


def _start_model(cell: Cell, store: Store) -> Any:
    """Return the model that a cell starts from: a folder or name, or a causal model loaded with its prompt."""
    model, prompt = cell.config["model"], cell.config.get("prompt")
    start = _run_folder(model, store) if TRAINED in model else str(cell.sources["model"])
    return start if prompt is None else load(start, task="prompt", **prompt)


def _run_folder(value: Mapping[str, Any], store: Store) -> Path:
    """Return another cell's folder, or one inside it. Raises ExpoundError if it does not exist."""
    folder = store.require_folder(value[TRAINED]) / str(value.get("path", ""))
    if not folder.is_dir():
        raise ExpoundError(f"the run {value[TRAINED]} has no folder {value['path']!r}")
    return folder


def _make_explainers(cell: Cell, store: Store, model: ExplainedModel) -> dict[str, str | Explainer]:
    """Return a judgement's explainers by the name that their results are stored under."""
    explainers: dict[str, str | Explainer] = {}
    for name, facts in cell.config["explainers"].items():
        explainers[name] = load_learned_explainer(cell, name, store) or _fill_spec(cell, name, store)
        if NOISY in facts:
            of = explainer(add_seed(explainers[name], cell.config["seed"]), model)
            explainers[name] = BestOfNoisy(of, **facts[NOISY], seed=cell.config["seed"])
    return explainers


def load_learned_explainer(cell: Cell, name: str, store: Store) -> Explainer | None:
    """Load an explainer of a judgement from the cell that learned it; None for one without such a cell."""
    if "run" not in cell.config["explainers"][name]:
        return None
    return explainer(_fill_spec(cell, name, store))


def _fill_spec(cell: Cell, name: str, store: Store) -> str:
    """Return an explainer's spec, with the folder of the cell that learned it."""
    facts = cell.config["explainers"][name]
    spec = str(facts.get("spec", name))
    if "run" not in facts:
        return spec
    return spec.replace(OWN_RUN, str(store.require_folder(facts["run"])))


def _fill_parameters(parameters: Mapping[str, Any], cell: Cell, store: Store) -> dict[str, Any]:
    """Return parameters with addresses replaced by what they name.

    That is a cell's folder, the mean of a figure over cells times a factor, the rows of a dataset, or a model's source.
    """
    filled = dict(parameters)
    for name, part in cell.sources.get("parts", {}).items():
        filled[name] = part
        if not isinstance(part, str):
            filled[name] = sources.load_dataset(part)
    for name, value in parameters.items():
        if isinstance(value, Mapping) and TRAINED in value:
            filled[name] = str(_run_folder(value, store))
        elif isinstance(value, Mapping) and "runs" in value:
            figures = [_read_figure(store.require_folder(key), value["metric"], value["of"]) for key in value["runs"]]
            filled[name] = fmean(figures) * value.get("times", 1.0)
    return filled


def _read_figure(folder: Path, metric: str, of: str | None) -> float:
    """Return a figure of a training run: the kept model's on dev, or with `of="train"` the lowest that was logged.

    Raises:
        ExpoundError: the run has no such figure.
    """
    if of == "train":
        history = json.loads((folder / HISTORY).read_text(encoding="utf-8"))["history"]
        names = set(chain.from_iterable(history))
        values = [entry[metric] for entry in history if entry.get(metric) is not None]
    else:
        figures = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        names, values = set(figures), []
        if figures.get(metric) is not None:
            values = [figures[metric]]
    if not values:
        raise ExpoundError(f"the run {folder.name} has no figure {metric!r}; it has: {', '.join(sorted(names))}")
    return float(min(values))


def _remove_unreadable_run(work: Path) -> None:
    """Remove an attempt whose record is torn or missing: its checkpoints cannot be matched to a configuration."""
    try:
        json.loads((work / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        # Recipes of several stages keep a record in each stage's folder, and none at the top until the end.
        if not any(work.glob(f"**/{RECORD}")):
            shutil.rmtree(work, ignore_errors=True)
    except ValueError:
        shutil.rmtree(work)


def _remove_unreadable_comparison(folder: Path) -> None:
    """Remove the parts of a comparison whose record is torn or missing."""
    try:
        json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
