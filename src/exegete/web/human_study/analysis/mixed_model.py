"""A linear mixed model: methods as fixed effects, people and items as crossed random ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from exegete.errors import ExegeteError


class Observation(NamedTuple):
    """One value of one person about one item as one method explains it: a rank, or 1 for a right guess."""

    person: str
    item: int
    method: str
    value: float


class Effect(NamedTuple):
    """A method's mean value with its 95 % interval, and `p` of its difference from the first method (NaN: itself)."""

    method: str
    mean: float
    low: float
    high: float
    p: float


class MixedModel(NamedTuple):
    """The fitted model: an effect a method, and the deviations that people, items and the rest bring in."""

    effects: list[Effect]
    sd_person: float
    sd_item: float
    sd_residual: float
    converged: bool


def fit_mixed_model(observed: Sequence[Observation]) -> MixedModel:
    """The model value ~ method + (1 | person) + (1 | item), by restricted maximum likelihood (statsmodels' MixedLM).

    Raises ExegeteError for fewer than two people, items, or methods, which leave nothing to estimate.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM  # noqa: PLC0415

    table = pd.DataFrame(observed, columns=list(Observation._fields))
    for part in ("person", "item", "method"):
        if table[part].nunique() < 2:
            raise ExegeteError(f"a mixed model needs two of each {part} or more, found {table[part].nunique()}")
    model = MixedLM.from_formula(
        "value ~ 0 + C(method)",
        groups=np.ones(len(table)),
        vc_formula={"person": "0 + C(person)", "item": "0 + C(item)"},
        data=table,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a variance of 0 is at the edge of what is allowed, and is told as 0
        fitted = model.fit(reml=True)
    names = sorted(table["method"].unique())
    interval = np.asarray(fitted.conf_int())[: len(names)]
    effects = [
        Effect(
            name,
            float(fitted.fe_params.iloc[n]),
            float(interval[n, 0]),
            float(interval[n, 1]),
            _test_difference(fitted, n, len(names)),
        )
        for n, name in enumerate(names)
    ]
    deviations = dict(zip(model.exog_vc.names, np.sqrt(np.maximum(fitted.vcomp, 0)), strict=True))
    person, item = float(deviations["person"]), float(deviations["item"])
    return MixedModel(effects, person, item, float(np.sqrt(fitted.scale)), bool(fitted.converged))


def _test_difference(fitted: Any, number: int, count: int) -> float:
    if number == 0:
        return float("nan")
    contrast = np.zeros(count)
    contrast[0], contrast[number] = -1, 1
    covariance = np.asarray(fitted.cov_params())[:count, :count]
    apart = contrast @ np.asarray(fitted.fe_params) / np.sqrt(contrast @ covariance @ contrast)
    return float(2 * norm.sf(abs(apart)))
