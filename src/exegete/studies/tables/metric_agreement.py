"""Do metrics agree on which explainers are better?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from exegete.metrics.agreement import kendall_tau
from exegete.reports.figures.study_figures import Matrix
from exegete.studies.spec.schema import FigurePart
from exegete.studies.tables.results import Results
from exegete.studies.tables.tables import select_figures

MODEL = ["training", "model", "recipe", "dataset"]


def make_metric_matrices(results: Results, part: FigurePart) -> list[Matrix]:
    """Kendall's τ over explainers between any two metrics: for each model and dataset, then the mean over these.

    An explainer's figure is its mean over seeds, turned around where lower is better, so that 1 is the same ranking.
    """
    names = list(part.metrics) or list(results.grid.study.file.metrics)
    frame = select_figures(results, names, part.where)
    frame = frame[frame["explainer"] != ""]
    found = []
    for key, group in frame.groupby(MODEL, sort=False):
        means = group.pivot_table("value", "explainer", "metric", aggfunc="mean")
        found.append((" / ".join(str(each) for each in key if each), kendall_matrix(_orient(results, means, names))))
    matrices = [Matrix(f"Kendall τ, {title}", names, names, values) for title, values in found]
    if len(found) > 1:
        mean = np.nanmean([values for _, values in found], 0)
        matrices.append(Matrix(f"Kendall τ, mean over {len(found)}", names, names, mean))
    return matrices


def kendall_matrix(figures: pd.DataFrame) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[M, M] Kendall's τ between the columns of figures [explainers, M], over the explainers that both judge."""
    columns = [figures[name].to_numpy(dtype=np.float64) for name in figures]
    known = [np.isfinite(column) for column in columns]
    pairs = [
        [kendall_tau(one[here & there], other[here & there]) for other, there in zip(columns, known, strict=True)]
        for one, here in zip(columns, known, strict=True)
    ]
    return np.array(pairs, dtype=np.float64)


def _orient(results: Results, means: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    signs = {name: 1 if results.get_card(name).higher_is_better else -1 for name in names}
    return means.reindex(columns=names).mul(pd.Series(signs))
