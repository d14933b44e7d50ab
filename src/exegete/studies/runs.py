"""The two kinds of runs: train a model, and judge it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset

from exegete.data.provenance import write_json
from exegete.errors import ExegeteError
from exegete.explainers.attribute import batches, targets_of
from exegete.metrics import metric
from exegete.models import ExplainedModel, load
from exegete.models.explained import finite
from exegete.models.labels import in_model_labels
from exegete.studies import methods, sources
from exegete.studies.cell import Cell, Store, Workspace
from exegete.studies.compare import compare, seeded
from exegete.studies.run_cell import Stopped
from exegete.training import evaluation
from exegete.training.run import HISTORY, METRICS, RECORD

FIGURES = "figures.json"
PREDICTIONS = "predictions.parquet"
RESULTS, CURVES = "results.parquet", "curves.parquet"
ATTRIBUTIONS, LAYERS = "attributions", "layers.parquet"


def train_model(cell: Cell, space: Workspace) -> None:
    """Trains a model; its folder then holds what `exegete.load` takes, without checkpoints.

    Raises:
        Stopped: a signal came; the newest checkpoint is kept.
    """
    config, given = cell.config, cell.sources
    _require_readable(space.work)
    recipe = methods.recipe(config["recipe"], _filled(config["parameters"], space.store))
    result = recipe.train(
        given["model"],
        sources.load(given["train"]),
        sources.load(given["dev"]),
        space.work,
        arguments={**config["arguments"], "disable_tqdm": True, "use_cpu": not torch.cuda.is_available()}
        | given["arguments"],
        early_stopping_patience=config["early_stopping_patience"],
        max_length=config["max_length"],
        seed=config["seed"],
    )
    if not result.finished:
        raise Stopped(f"stopped after step {result.steps}")
    for path in space.work.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, space.fresh / path.name)


def judge_model(cell: Cell, space: Workspace) -> None:
    """Judges a model on a dataset: its figures and predictions, and its explanations where any are asked for."""
    config, given = cell.config, cell.sources
    where = space.store.needed(cell.needs[0]) if cell.needs else given["model"]
    model, data = load(where), sources.load(given["dataset"])
    figures, predictions = performance(model, data)
    write_json(space.fresh / FIGURES, figures)
    predictions.to_parquet(space.fresh / PREDICTIONS, index=False)
    if not config["explainers"]:
        return
    explainers, metrics = list(config["explainers"]), list(config["metrics"])
    folder = space.work / "comparison"
    _require_parts(folder)
    comparison = compare(
        model, data, explainers, metrics, target=config["target"], seed=config["seed"], output_dir=folder
    )
    columns = {card.name: spec for card, spec in zip(comparison.cards, metrics, strict=False)}
    comparison.results.rename(columns=columns).to_parquet(space.fresh / RESULTS, index=False)
    named = comparison.curves.assign(metric=comparison.curves["metric"].replace(columns))
    named.to_parquet(space.fresh / CURVES, index=False)
    if config["keep_attributions"]:
        comparison.attributions.save(space.fresh / ATTRIBUTIONS)
    if config["layers"]:
        by_layer(model, data, explainers, metrics, config["target"], config["seed"]).to_parquet(
            space.fresh / LAYERS, index=False
        )


@torch.no_grad()
def by_layer(
    model: ExplainedModel, data: Dataset, explainers: list[str], metrics: list[str], target: Any, seed: int
) -> pd.DataFrame:
    """The mean over examples of every metric on rationales, for each layer's scores: method, metric, layer, value."""
    rows, found = in_model_labels(model, data), list[pd.DataFrame]()
    judges = {spec: metric(spec) for spec in metrics if metric(spec).card.needs_rationale}
    for indices in batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        explained = model.target(batch, targets_of(target, indices, len(rows)), finite(model(batch).logits))
        for spec in explainers:
            layers = seeded(spec, seed).explain(model, batch, explained).layers
            for layer, scores in enumerate(() if layers is None else layers.unbind(1), 1):
                for name, judge in judges.items():
                    values = judge.judge(model, batch, scores, explained)[judge.name].cpu().numpy()
                    found.append(pd.DataFrame({"method": spec, "metric": name, "layer": layer, "value": values}))
    columns = ["method", "metric", "layer"]
    every = pd.concat(found) if found else pd.DataFrame(columns=[*columns, "value"])
    return every.groupby(columns, sort=False)["value"].mean().reset_index()


@torch.no_grad()
def performance(model: ExplainedModel, data: Dataset) -> tuple[dict[str, float], pd.DataFrame]:
    """The task's figures over a dataset, and a row an example: its label, and what was predicted.

    Labels are in the model's numbering; a dataset without labels has no figures.

    Raises:
        ExegeteError: a label that the model does not know.
    """
    rows = in_model_labels(model, data)
    predicted: dict[int, Any] = {}
    with model.evaluating():
        for indices in batches(model, rows):
            batch = model.encode([rows[index] for index in indices])
            answers = evaluation.predictions(model, batch, finite(model(batch).logits)).float().cpu().numpy()
            predicted |= dict(zip(indices, answers, strict=True))
    stacked = np.stack([predicted[index] for index in range(len(rows))])
    frame = pd.DataFrame({"example": range(len(rows)), "predicted": list(stacked.reshape(len(rows), -1))})
    if "answer" in data.column_names:
        return evaluation.score(model.task.name, stacked, data), frame
    labels = [row.get("label") for row in rows]
    if any(label is None for label in labels):
        return {}, frame
    figures = evaluation.score(model.task.name, stacked, Dataset.from_dict({"label": labels}))
    return figures, frame.assign(label=np.asarray(labels))


def _filled(parameters: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The parameters with values from other runs put in: the mean of a figure over them, times a factor."""
    filled = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, Mapping) and "runs" in value:
            found = [_figure(store.needed(key), value["metric"], value["of"]) for key in value["runs"]]
            filled[name] = fmean(found) * value.get("times", 1.0)
    return filled


def _figure(folder: Path, metric: str, of: str | None) -> float:
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


def _require_readable(work: Path) -> None:
    """Starts over where the record of an attempt is torn: without it nothing says what the checkpoints are of."""
    try:
        json.loads((work / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not any(work.glob(f"*/{RECORD}")):
            _empty(work)
    except ValueError:
        _empty(work)


def _require_parts(folder: Path) -> None:
    record = folder / RECORD
    try:
        json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
