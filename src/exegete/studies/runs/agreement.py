"""Do two attributions rank an example's tokens alike? Between models, between seeds, and between explainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from exegete.data.provenance import digest
from exegete.errors import ExegeteError
from exegete.reports.storage import DATA
from exegete.studies.runs.grid import RunGrid
from exegete.studies.runs.run_files import ATTRIBUTIONS
from exegete.studies.runs.store import Store
from exegete.studies.runs.study_run import StudyRun
from exegete.studies.similarity import Measure, get_measure, mean_defined, mean_similarity

Scores = Mapping[str, Sequence[NDArray[np.float64]]]
"""By explainer: each example's scores, without special tokens."""

SEED = 42


def read_scores(store: Store, run: StudyRun) -> Scores:
    """The attribution scores kept by a judged run; magnitudes where an explainer is signed (Ferreira et al. 2025).

    Raises:
        ExegeteError: it kept none.
    """
    path = store.cell_folder(run.cell.key) / ATTRIBUTIONS / DATA
    if not path.exists():
        raise ExegeteError(f"{run.title}: no attributions were kept; set keep_attributions in its judgement")
    frame = pd.read_parquet(path, columns=["scores", "special", "signed"])
    kept = [
        np.abs(s[~np.asarray(special, dtype=bool)]) if signed else s[~np.asarray(special, dtype=bool)]
        for s, special, signed in zip(frame["scores"], frame["special"], frame["signed"], strict=True)
    ]
    specs = list(run.cell.config["explainers"])
    size = len(kept) // len(specs)
    parts = {spec: kept[place * size : (place + 1) * size] for place, spec in enumerate(specs)}
    return {name: parts[spec] for name, spec in run.explainers.items()}


def compute_comparisons(grid: RunGrid, store: Store) -> Iterator[tuple[StudyRun, str, str, float]]:
    """The study's comparisons: a judged run that is done, an explainer, the comparison, and its figure.

    A run's figure is the mean over the other runs of the same training, model and data: those of its recipe with
    another seed, or those of the recipe it is compared against.
    """
    for run, explainer, name, key, value in list_comparisons(grid, store):
        yield run, explainer, name, store.compute_derived(key, value)


def list_comparisons(grid: RunGrid, store: Store) -> Iterator[tuple[StudyRun, str, str, str, Callable[[], float]]]:
    """As `compute_comparisons`, with the address of each figure and a function that computes it.

    A figure that is not known yet needs the attributions themselves: without those of imported runs it is left out.
    """
    known: dict[str, Scores] = {}

    def scores_of(run: StudyRun) -> Scores:
        if run.title not in known:
            known[run.title] = read_scores(store, run)
        return known[run.title]

    for name, part in grid.study.file.comparisons.items():
        runs = [run for run in grid.runs if run.judgement == part.judgement and store.is_done(run.cell.key)]
        for run in runs:
            others = [other for other in runs if other is not run and _is_comparable(run, other, part.against)]
            for explainer, spec in run.explainers.items():
                with_it = [other for other in others if explainer in other.explainers]
                if with_it:
                    these = [[other.cell.key, other.explainers[explainer]] for other in with_it]
                    key = digest([part.measure, run.cell.key, spec, these])
                    if store.has_derived(key) or all(store.is_complete(each.cell.key) for each in (run, *with_it)):
                        yield (
                            run,
                            explainer,
                            name,
                            key,
                            partial(_compute_figure, scores_of, run, with_it, explainer, part.measure),
                        )


def _compute_figure(
    scores_of: Callable[[StudyRun], Scores], run: StudyRun, others: Sequence[StudyRun], explainer: str, spec: str
) -> float:
    own, how = scores_of(run)[explainer], get_measure(spec)
    return mean_defined([mean_similarity(own, scores_of(other)[explainer], how) for other in others])


def _is_comparable(run: StudyRun, other: StudyRun, against: str | None) -> bool:
    same = all(getattr(run, name) == getattr(other, name) for name in ("training", "model", "dataset"))
    return same and other.recipe == (against or run.recipe)


def agreement_between_models(one: Sequence[Scores], other: Sequence[Scores], how: Measure) -> dict[str, float]:
    """By explainer: mean of the measure of the same example on two models, drawn for each example from both groups.

    Where the groups are the same one, two different models are drawn: the agreement that seeds alone leave.
    """
    generator, same = np.random.default_rng(SEED), one is other
    if same and len(one) < 2:
        return dict.fromkeys(one[0], float("nan"))
    names = [name for name in one[0] if name in other[0]]
    found: dict[str, list[float]] = {name: [] for name in names}
    for example in range(len(one[0][names[0]])):
        first = int(generator.integers(len(one)))
        second = int(generator.integers(len(other) - same))
        second += same and second >= first
        for name in names:
            found[name].append(how(one[first][name][example], other[second][name][example]))
    return {name: mean_defined(values) for name, values in found.items()}


def agreement_between_explainers(models: Sequence[Scores], how: Measure) -> dict[tuple[str, str], float]:
    """By pair of explainers: mean of the measure of the same example on the same model."""
    names = list(models[0])
    return {
        (one, other): mean_defined(
            [how(a, b) for model in models for a, b in zip(model[one], model[other], strict=True)]
        )
        for one, other in _list_pairs(names)
    }


def agreement_between_seeds(models: Sequence[Scores], explainer: str, how: Measure) -> NDArray[np.float64]:
    """[S, S] The measure of an explainer's attributions on the models of every two seeds, mean over examples."""
    return np.array([[mean_similarity(one[explainer], other[explainer], how) for other in models] for one in models])


def _list_pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, one in enumerate(names):
        for other in names[place:]:
            yield one, other
