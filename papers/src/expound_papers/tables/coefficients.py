"""Coefficients that learned explainers give to attention heads, averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from expound.errors import ExpoundError
from expound.explainers.learned.coefficients import COEFFICIENTS
from expound_papers.runs.execution import load_learned_explainer
from expound_papers.study.display import FigurePart
from expound_papers.tables.drawing import Matrix
from expound_papers.tables.results import Results

CoefficientMaps = Mapping[str, NDArray[np.float64]]


def make_coefficient_matrices(results: Results, part: FigurePart) -> list[Matrix]:
    """Return the mean over judged runs for each training, recipe, explainer and kind of coefficient.

    Raises:
        ExpoundError: no finished run was explained by a learned explainer.
    """
    found: dict[tuple[str, ...], dict[str, CoefficientMaps]] = {}
    for run in results.find_runs():
        fields = {"training": run.training, "model": run.model, "recipe": run.recipe}
        if not _is_selected(part, fields | {"judgement": run.judgement}):
            continue
        for name in run.explainers:
            explainer = load_learned_explainer(run.cell, run.explainers[name], results.store)
            if explainer is not None and type(explainer) in COEFFICIENTS and _is_selected(part, {"explainer": name}):
                maps = {}
                for kind, coefficients in COEFFICIENTS[type(explainer)](explainer).items():
                    maps[kind] = coefficients.detach().double().numpy()
                source = run.cell.config["explainers"][run.explainers[name]]["run"]
                found.setdefault((*fields.values(), name), {})[source] = maps
    if not found:
        raise ExpoundError("no finished run was explained by a learned explainer")
    matrices = []
    for place, by_run in found.items():
        for kind in next(iter(by_run.values())):
            title = " / ".join(filter(None, (*place, kind)))
            matrices.append(_mean_matrix(title, [maps[kind] for maps in by_run.values()]))
    return matrices


def _is_selected(part: FigurePart, fields: Mapping[str, str]) -> bool:
    return all(name not in part.where or value in part.where[name] for name, value in fields.items())


def _mean_matrix(title: str, values: list[NDArray[np.float64]]) -> Matrix:
    mean = np.mean(values, axis=0)
    rows = [f"layer {number}" for number in range(1, mean.shape[0] + 1)]
    columns = [str(number) for number in range(1, mean.shape[1] + 1)]
    return Matrix(title, rows, columns, mean, float(np.abs(mean).max()) or 1.0, written=mean.size <= 144)
