"""Agreement of metrics on which explainers are better."""

from __future__ import annotations

import numpy as np
import pandas as pd

from expound_papers.similarity import kendall_tau
from expound_papers.study.display import FigurePart
from expound_papers.tables.drawing import Matrix
from expound_papers.tables.layout import select_figures
from expound_papers.tables.results import Results

MODEL = ["training", "model", "recipe", "dataset"]


def make_metric_matrices(results: Results, part: FigurePart) -> list[Matrix]:
    """Return Kendall's τ over explainers between any two metrics: per model and dataset, and the mean over these.

    Explainers are ranked by their mean over seeds, best first, so that 1 means the same ranking.
    """
    names = list(part.metrics) or list(results.study.metrics)
    frame = select_figures(results, names, part.where)
    frame = frame[frame["explainer"] != ""]
    by_place = []
    for key, group in frame.groupby(MODEL, sort=False):
        means = group.pivot_table("value", "explainer", "metric", aggfunc="mean")
        means = means.reindex(columns=names)
        for name in names:
            if not results.get_card(name).higher_is_better:
                means[name] *= -1
        taus = kendall_matrix(means)
        place = " / ".join(filter(None, map(str, key)))
        by_place.append(Matrix(f"Kendall τ, {place}", names, names, taus))
    if len(by_place) < 2:
        return by_place
    mean = np.nanmean([matrix.values for matrix in by_place], 0)
    return [*by_place, Matrix(f"Kendall τ, mean over {len(by_place)}", names, names, mean)]


def kendall_matrix(figures: pd.DataFrame) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return Kendall's τ [M, M] between the columns of `figures` [explainers, M], over explainers with both values."""
    columns = figures.to_numpy(dtype=np.float64).T
    taus = np.empty((len(columns), len(columns)))
    for i, j in np.ndindex(*taus.shape):
        both = np.isfinite(columns[i]) & np.isfinite(columns[j])
        taus[i, j] = kendall_tau(columns[i][both], columns[j][both])
    return taus
