"""The two kinds of runs: train a model, and judge it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset

from exegete.data.provenance import write_json
from exegete.errors import ExegeteError
from exegete.explainers import Explainer, explainer
from exegete.explainers.registry import make_seeded
from exegete.models import ExplainedModel, load
from exegete.models.state.restore import use_full_attention
from exegete.studies.compare.compare import compare
from exegete.studies.compare.comparison import Comparison
from exegete.studies.compare.shards import OtherComparisonError
from exegete.studies.protocols import registry as protocols
from exegete.studies.protocols.performance import evaluate_performance
from exegete.studies.runs.layer_plausibility import plausibility_by_layer
from exegete.studies.runs.noisy_control import BestOfNoisy
from exegete.studies.runs.run_files import ATTRIBUTIONS, CURVES, FIGURES, LAYERS, PREDICTIONS, RESULTS
from exegete.studies.runs.store import Cell, Store, Workspace
from exegete.studies.spec import recipe_configs, sources
from exegete.studies.spec.explainer_configs import NOISY
from exegete.studies.spec.run_ref import OWN_RUN, RUN_IN_SPEC, TRAINED
from exegete.training import RunOptions
from exegete.training.loop.data import is_generation_data
from exegete.training.loop.run import HISTORY, METRICS, RECORD

TEMPORARY_FILES = (".*", "checkpoint-*", "events.out.*")


def train_model(cell: Cell, space: Workspace) -> None:
    """Trains a model; its folder then holds what `exegete.load` takes, without checkpoints.

    What a recipe puts beside its folder is there as long as the run works.

    Raises:
        Stopped: a signal came; the newest checkpoint is kept.
    """
    config, given, folder = cell.config, cell.sources, space.work / "run"
    _remove_unreadable_run(folder)
    recipe = recipe_configs.make_recipe(config["recipe"], _fill_parameters(config["parameters"], cell, space.store))
    result = recipe.train(
        _start_model(cell, space.store),
        sources.load_dataset(given["train"]),
        sources.load_dataset(given["dev"]),
        folder,
        RunOptions(
            arguments={**config["arguments"], "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}
            | given["arguments"],
            seed=config["seed"],
            max_length=config["max_length"],
            early_stopping_patience=config["early_stopping_patience"],
            **config.get("options", {}),
        ),
    )
    result.require_finished("training")
    shutil.copytree(folder, space.output, ignore=shutil.ignore_patterns(*TEMPORARY_FILES), dirs_exist_ok=True)


def judge_model(cell: Cell, space: Workspace) -> None:
    """Judges a model on a dataset: its figures and predictions, and its explanations where any are asked for."""
    config = cell.config
    data = sources.load_dataset(cell.sources["dataset"])
    model = load(_start_model(cell, space.store), task="generation" if is_generation_data(data) else None)
    chosen = sample_examples(len(data), config.get("limit"))
    data = data.select(chosen)
    figures, predictions = evaluate_performance(model, data)
    predictions.assign(example=chosen).to_parquet(space.output / PREDICTIONS, index=False)
    if "protocol" in config:
        found = _run_protocol(cell, space, model, data)
        if isinstance(found, pd.DataFrame):
            found.to_parquet(space.output / RESULTS, index=False)
        else:
            figures |= found
    write_json(space.output / FIGURES, figures)
    if not config["explainers"] or protocols.uses_explainers(config.get("protocol", {}).get("name")):
        return
    with use_full_attention(model.model) if "full_attention" in config else nullcontext():
        _explain(cell, space, model, data, chosen)


def _explain(cell: Cell, space: Workspace, model: ExplainedModel, data: Dataset, chosen: Sequence[int]) -> None:
    """Keeps the results of a judgement's explainers; `chosen`: the numbers of the examples in the whole dataset."""
    config, explainers = cell.config, _make_explainers(cell, space.store)
    special = "special_tokens" in config
    comparison = _run_comparison(cell, space.work / "comparison", space.store, model, data, explainers)
    columns = {card.name: spec for card, spec in zip(comparison.cards, config["metrics"], strict=False)}
    places = dict(enumerate(chosen))
    results = comparison.results.rename(columns=columns).replace({"example": places})
    results.to_parquet(space.output / RESULTS, index=False)
    named = comparison.curves.assign(metric=comparison.curves["metric"].replace(columns)).replace({"example": places})
    named.to_parquet(space.output / CURVES, index=False)
    if config["keep_attributions"]:
        comparison.attributions.save(space.output / ATTRIBUTIONS)
    if config["layers"]:
        metrics, target, seed = list(config["metrics"]), config["target"], config["seed"]
        layered = plausibility_by_layer(model, data, explainers, metrics, target, seed, special_tokens=special)
        layered.to_parquet(space.output / LAYERS, index=False)


def sample_examples(count: int, limit: int | None) -> list[int]:
    """The examples of `count` that a judgement with a limit looks at, in their order; all without one."""
    return sorted(np.random.default_rng(0).permutation(count)[:limit].tolist())


def _run_protocol(
    cell: Cell, space: Workspace, model: ExplainedModel, data: Dataset
) -> Mapping[str, float] | pd.DataFrame:
    """The findings of the judgement's protocol, its methods by what results are stored under."""
    protocol, names = (
        cell.config["protocol"],
        {_fill_spec(cell, name, space.store): name for name in cell.config["explainers"]},
    )
    options = _fill_parameters(protocol["options"], cell, space.store)
    given = {"seed": cell.config["seed"], "explainers": [*names], "folder": space.work / "protocol"}
    found = protocols.run_protocol(protocol["name"], model, data, options, **given)
    return found.replace({"method": names}) if isinstance(found, pd.DataFrame) else found


def _run_comparison(
    cell: Cell,
    folder: Path,
    store: Store,
    model: ExplainedModel,
    data: Dataset,
    explainers: Mapping[str, str | Explainer],
) -> Comparison:
    """The comparison of a judgement, which goes on where a stopped one was."""
    config = cell.config
    options = {name: config[name] for name in ("target", "seed")} | {"special_tokens": "special_tokens" in config}
    options |= {"unmarked": True, "unit": config.get("unit")}
    metrics = [_fill_metric(spec, facts, store) for spec, facts in config["metrics"].items()]
    _remove_unreadable_comparison(folder)
    try:
        return compare(model, data, explainers, metrics, output_dir=folder, **options)
    except OtherComparisonError:  # parts of another version of this library: the run's address does not know them
        shutil.rmtree(folder)
        return compare(model, data, explainers, metrics, output_dir=folder, **options)


def _fill_metric(spec: str, facts: Mapping[str, Any], store: Store) -> str:
    """A metric's spec with the folders of the runs that it names."""
    return RUN_IN_SPEC.sub(lambda named: str(store.require_folder(facts["runs"][named[1]])), spec)


def _start_source(cell: Cell, store: Store) -> str | Path:
    """The model that a run begins with: the grid's, or another run's."""
    model = cell.config["model"]
    return _run_folder(model, store) if TRAINED in model else str(cell.sources["model"])


def _start_model(cell: Cell, store: Store) -> Any:
    """The model that a run begins with: a folder or name, or a causal model in its prompt."""
    start, prompt = _start_source(cell, store), cell.config.get("prompt")
    return start if prompt is None else load(start, task="prompt", **prompt)


def _run_folder(value: Mapping[str, Any], store: Store) -> Path:
    """Another run's folder, or one inside it. Raises ExegeteError when it is not there."""
    folder = store.require_folder(value[TRAINED]) / str(value.get("path", ""))
    if not folder.is_dir():
        raise ExegeteError(f"the run {value[TRAINED]} has no folder {value['path']!r}")
    return folder


def _make_explainers(cell: Cell, store: Store) -> dict[str, str | Explainer]:
    """A judgement's explainers by what their results are stored under; learned ones from the runs they are in."""
    found: dict[str, str | Explainer] = {}
    for name, facts in cell.config["explainers"].items():
        found[name] = load_learned_explainer(cell, name, store) or _fill_spec(cell, name, store)
        if NOISY in facts:
            of = make_seeded(found[name], cell.config["seed"])
            found[name] = BestOfNoisy(of, **facts[NOISY], seed=cell.config["seed"])
    return found


def load_learned_explainer(cell: Cell, name: str, store: Store) -> Explainer | None:
    """An explainer of a judged run that a run of the study left; None for one that goes by its id."""
    return explainer(_fill_spec(cell, name, store)) if "run" in cell.config["explainers"][name] else None


def _fill_spec(cell: Cell, name: str, store: Store) -> str:
    """An explainer's spec, with the folder of the run that it comes from."""
    facts = cell.config["explainers"][name]
    spec = str(facts.get("spec", name))
    return spec.replace(OWN_RUN, str(store.require_folder(facts["run"]))) if "run" in facts else spec


def _fill_parameters(parameters: Mapping[str, Any], cell: Cell, store: Store) -> dict[str, Any]:
    """The parameters with what they stand for put in.

    That is a run's folder, the mean of a figure over runs times a factor, the rows of a dataset, or a model's source.
    """
    parts = cell.sources.get("parts", {})
    found = {name: part if isinstance(part, str) else sources.load_dataset(part) for name, part in parts.items()}
    filled = {**parameters, **found}
    for name, value in parameters.items():
        if isinstance(value, Mapping) and TRAINED in value:
            filled[name] = str(_run_folder(value, store))
        elif isinstance(value, Mapping) and "runs" in value:
            values = [_read_figure(store.require_folder(key), value["metric"], value["of"]) for key in value["runs"]]
            filled[name] = fmean(values) * value.get("times", 1.0)
    return filled


def _read_figure(folder: Path, metric: str, of: str | None) -> float:
    """A figure of the model that was kept on dev, or the lowest that was logged in training."""
    if of == "train":
        history = json.loads((folder / HISTORY).read_text(encoding="utf-8"))["history"]
        known = sorted({name for entry in history for name in entry})
        values = [entry[metric] for entry in history if entry.get(metric) is not None]
    else:
        figures = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        known, values = sorted(figures), [figures[metric]] if figures.get(metric) is not None else []
    if not values:
        raise ExegeteError(f"the run {folder.name} has no figure {metric!r}; it has: {', '.join(known)}")
    return float(min(values))


def _remove_unreadable_run(work: Path) -> None:
    """Starts over where the record of an attempt is torn: without it nothing says what the checkpoints are of."""
    try:
        json.loads((work / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not any(work.glob(f"**/{RECORD}")):
            shutil.rmtree(work, ignore_errors=True)
    except ValueError:
        shutil.rmtree(work)


def _remove_unreadable_comparison(folder: Path) -> None:
    record = folder / RECORD
    try:
        json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
