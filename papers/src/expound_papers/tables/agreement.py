"""Agreement of attributions on the same example: between models, between seeds, and between explainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from expound.data.provenance import digest
from expound.errors import ExpoundError
from expound.reports.storage import DATA
from expound_papers.runs.run_files import ATTRIBUTIONS
from expound_papers.runs.store import Store
from expound_papers.similarity import Measure, get_measure, mean_defined, mean_similarity
from expound_papers.study.display import ComparisonPart
from expound_papers.study.parts import StudyRun
from expound_papers.study.study import Study

Scores = Mapping[str, Sequence[NDArray[np.float64]]]
"""By explainer: the scores of each example's content tokens."""

SEED = 42


def read_scores(store: Store, run: StudyRun) -> Scores:
    """Read the attribution scores that a judgement kept, by explainer.

    Scores of signed explainers become magnitudes, as in Ferreira et al. (2025).

    Raises:
        ExpoundError: the judgement kept no attributions.
    """
    path = store.cell_folder(run.cell.key) / ATTRIBUTIONS / DATA
    if path.parent.exists() and not path.exists():
        raise ExpoundError(f"{path.parent} was written by another version of expound: remove the cell and judge again")
    if not path.exists():
        raise ExpoundError(f"{run.title}: no attributions were kept; set keep_attributions in its judgement")
    frame = pd.read_parquet(path, columns=["token_scores", "special", "signed"])
    rows = []
    for scores, special, signed in zip(frame["token_scores"], frame["special"], frame["signed"], strict=True):
        content = scores[0][~np.asarray(special, dtype=bool)]
        if signed:
            content = np.abs(content)
        rows.append(content)
    # Rows are sorted by explainer, in the order of the configuration, and then by example.
    specs = list(run.cell.config["explainers"])
    size, by_name = len(rows) // len(specs), {}
    for name, spec in run.explainers.items():
        start = specs.index(spec) * size
        by_name[name] = rows[start : start + size]
    return by_name


def compute_comparisons(study: Study, store: Store) -> Iterator[tuple[StudyRun, str, str, float]]:
    """Yield the figures of a study's comparisons: finished judgement, explainer, comparison, figure.

    A judgement's figure is the mean over other runs of the same training, model and data: those of its recipe with
    another seed, or those of the recipe it is compared against.
    """
    for run, explainer, name, key, compute in list_comparisons(study, store):
        yield run, explainer, name, store.compute_derived(key, compute)


def list_comparisons(study: Study, store: Store) -> Iterator[tuple[StudyRun, str, str, str, Callable[[], float]]]:
    """Yield what `compute_comparisons` does, with the address of each figure and a function that computes it.

    Figures that were not computed yet are left out if the attributions of an imported run are missing.
    """
    known: dict[str, Scores] = {}

    def scores_of(run: StudyRun) -> Scores:
        # Each run is compared with all others, so its scores are read once.
        if run.title not in known:
            known[run.title] = read_scores(store, run)
        return known[run.title]

    for name, part in study.comparisons.items():
        runs = [run for run in study.runs if run.judgement in part.judgements and store.is_done(run.cell.key)]
        for run in runs:
            for explainer, spec in run.explainers.items():
                others, compared = list[StudyRun](), list[list[str]]()
                for other in runs:
                    if _is_comparable(run, other, part.against) and explainer in other.explainers:
                        others.append(other)
                        compared.append([other.cell.key, other.explainers[explainer]])
                key = digest([part.measure, run.cell.key, spec, compared])
                is_known = store.has_derived(key) or all(store.is_complete(each.cell.key) for each in (run, *others))
                if others and is_known:
                    yield run, explainer, name, key, partial(_compute_figure, scores_of, run, others, explainer, part)


def _compute_figure(
    scores_of: Callable[[StudyRun], Scores],
    run: StudyRun,
    others: Sequence[StudyRun],
    explainer: str,
    part: ComparisonPart,
) -> float:
    own, how = scores_of(run)[explainer], get_measure(part.measure)
    return mean_defined([mean_similarity(own, scores_of(other)[explainer], how) for other in others])


def _is_comparable(run: StudyRun, other: StudyRun, against: str | None) -> bool:
    if other is run or other.recipe != (against or run.recipe):
        return False
    places = [(each.training, each.model, each.dataset, each.judgement) for each in (run, other)]
    return places[0] == places[1]


def agreement_between_models(one: Sequence[Scores], other: Sequence[Scores], how: Measure) -> dict[str, float]:
    """Return the mean agreement of two random models on each example, one from each group, by explainer.

    If both groups are the same object, the two models differ: the figure is the agreement between seeds.
    """
    generator, same = np.random.default_rng(SEED), one is other
    if same and len(one) < 2:
        return dict.fromkeys(one[0], float("nan"))
    pairs = []
    for _ in next(iter(one[0].values())):
        first = int(generator.integers(len(one)))
        # Drawn from one fewer and moved past the first: uniform over the models that differ from it.
        second = int(generator.integers(len(other) - same))
        second += same and second >= first
        pairs.append((one[first], other[second]))
    means = {}
    for name in one[0]:
        if name in other[0]:
            values = [how(a[name][number], b[name][number]) for number, (a, b) in enumerate(pairs)]
            means[name] = mean_defined(values)
    return means


def agreement_between_explainers(models: Sequence[Scores], how: Measure) -> dict[tuple[str, str], float]:
    """Return the mean agreement of two explainers on the same example and model, by pair of explainers."""
    means = {}
    for one, other in combinations_with_replacement(models[0], 2):
        values: list[float] = []
        for model in models:
            values += [how(a, b) for a, b in zip(model[one], model[other], strict=True)]
        means[one, other] = mean_defined(values)
    return means


def agreement_between_seeds(models: Sequence[Scores], explainer: str, how: Measure) -> NDArray[np.float64]:
    """Return the mean agreement of an explainer's attributions between the models of every two seeds, [S, S]."""
    similarities = np.empty((len(models), len(models)))
    for row, column in np.ndindex(similarities.shape):
        similarities[row, column] = mean_similarity(models[row][explainer], models[column][explainer], how)
    return similarities
