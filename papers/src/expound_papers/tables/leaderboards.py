"""Leaderboards over all runs of a store, across studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from expound.data.provenance import digest
from expound.metrics import metric
from expound.reports.tables.leaderboard import Leaderboard, make_leaderboard
from expound_papers.runs.run_files import RESULTS, TRAINED
from expound_papers.runs.store import Store
from expound_papers.tables.results import is_infeasible

RUNS, SEED = "runs", "seed"


def make_leaderboards(store: Store) -> dict[str, Leaderboard]:
    """Return a leaderboard for each dataset on which explanations in the store were judged.

    A row is a trained model and an explainer: the run's title without seed and judgement, with the first digits of a
    digest if models with the same title were trained differently. Means and intervals are over examples and seeds.
    Models that missed the constraint of their training are left out.
    """
    found: dict[str, list[tuple[str, str, pd.DataFrame]]] = {}
    for key in store.list_finished():
        record = store.read_record(key)
        if record is None or not store.has_file(key, RESULTS):
            continue
        model = record["config"]["model"]
        if TRAINED in model and store.is_done(model[TRAINED]) and is_infeasible(store, model[TRAINED]):
            continue
        *place, seed, _, dataset = record["title"].split(" / ")
        frame = store.read_frame(key, RESULTS)
        # The same example under another seed is another observation.
        frame["example"] = seed + " / " + frame["example"].astype(str)
        known = frame.columns[frame.columns.isin(list(record["config"]["metrics"]))]
        at = f"{dataset} ({digest(record['config']['dataset'])[:6]})"
        made = digest(_drop_seeds(model, store))[:6]
        found.setdefault(at, []).append((" / ".join(place), made, frame[["example", "method", *known]]))
    return {dataset: _make_board(_name_methods(parts)) for dataset, parts in found.items()}


def _drop_seeds(value: Any, store: Store) -> Any:
    """Return a configuration without seeds, with the configurations of other runs instead of their addresses."""
    if isinstance(value, list | tuple):
        return [_drop_seeds(each, store) for each in value]
    if not isinstance(value, Mapping):
        return value
    way = dict[str, Any]()
    for name, each in value.items():
        if name == TRAINED:
            way[name] = _drop_seeds_of_run(each, store)
        elif name == RUNS:
            way[name] = sorted({digest(_drop_seeds_of_run(key, store)) for key in each})
        elif name != SEED:
            way[name] = _drop_seeds(each, store)
    return way


def _drop_seeds_of_run(key: str, store: Store) -> Any:
    record = store.read_record(key)
    return key if record is None else _drop_seeds(record["config"], store)


def _name_methods(parts: list[tuple[str, str, pd.DataFrame]]) -> list[pd.DataFrame]:
    """Return the frames with the full names of their rows as `method`."""
    ways: dict[str, set[str]] = {}
    for place, made, _ in parts:
        ways.setdefault(place, set()).add(made)
    frames = []
    for place, made, frame in parts:
        # The digest tells runs apart that differ in more than the seed.
        name = f"{place} ({made})" if len(ways[place]) > 1 else place
        frames.append(frame.assign(method=f"{name} / " + frame["method"]))
    return frames


def _make_board(parts: list[pd.DataFrame]) -> Leaderboard:
    together = pd.concat(parts).groupby(["method", "example"], sort=False, as_index=False).first()
    specs = list(map(str, together.columns.drop(["method", "example"])))
    known = [metric(spec).card for spec in specs]
    names = Counter(card.name for card in known)
    cards = []
    for spec, card in zip(specs, known, strict=True):
        label = card.label if names[card.name] == 1 else spec
        cards.append(replace(card, name=spec, label=label))
    return make_leaderboard(together, cards)
