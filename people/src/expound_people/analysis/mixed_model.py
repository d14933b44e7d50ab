"""A linear mixed model with methods as fixed effects, and annotators and items as crossed random effects."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from expound.errors import ExpoundError


class Observation(NamedTuple):
    """An annotator's value for one item and method: a rank, or 1 for a correct guess and 0 for a wrong one."""

    person: str
    item: int
    method: str
    value: float


class Effect(NamedTuple):
    """A method's mean value, its 95 % interval, and the p value of its difference from the first method (Wald test).

    `p` of the first method is NaN.
    """

    method: str
    mean: float
    low: float
    high: float
    p: float


class MixedModel(NamedTuple):
    """The fitted model: one effect per method, and the standard deviations of annotators, items and residuals."""

    effects: list[Effect]
    sd_person: float
    sd_item: float
    sd_residual: float
    converged: bool


def fit_mixed_model(observations: Sequence[Observation]) -> MixedModel:
    """Fit value ~ method + (1 | person) + (1 | item) by restricted maximum likelihood (statsmodels' MixedLM).

    Raises:
        ExpoundError: fewer than two annotators, items or methods, or no variance: all values of each method are equal.
    """
    # Imported here because statsmodels is slow to import, and only results of studies need it.
    from statsmodels.regression.mixed_linear_model import MixedLM

    table = pd.DataFrame(observations, columns=list(Observation._fields)).astype({"value": float})
    for factor in ("person", "item", "method"):
        if table[factor].nunique() < 2:
            raise ExpoundError(f"a mixed model needs two of each {factor} or more, found {table[factor].nunique()}")
    if table.groupby("method")["value"].nunique().max() == 1:
        raise ExpoundError("a mixed model needs values that differ, found the same one everywhere for each method")
    # MixedLM nests random effects in groups. A single group with variance components makes them crossed instead.
    model = MixedLM.from_formula(
        "value ~ 0 + C(method)",
        groups=np.ones(len(table)),
        vc_formula={"person": "0 + C(person)", "item": "0 + C(item)"},
        data=table,
    )
    with warnings.catch_warnings():
        # A variance of 0 lies on the boundary of the parameter space. It is a valid result, and reported as 0.
        warnings.simplefilter("ignore")
        # Without derivatives: the others stop far from the best likelihood if a variance is 0.
        fitted = model.fit(reml=True, method="nm", maxiter=2000)
    methods = sorted(table["method"].unique())
    intervals = np.asarray(fitted.conf_int())[: len(methods)]
    effects = []
    for number, (method, (low, high)) in enumerate(zip(methods, intervals, strict=True)):
        mean = float(fitted.fe_params.iloc[number])
        p = float("nan")
        if number > 0:
            contrast = np.zeros(len(methods))
            contrast[0], contrast[number] = -1, 1
            p = fitted.t_test(contrast[None]).pvalue.item()
        effects.append(Effect(method, mean, float(low), float(high), p))
    # statsmodels sorts variance components by name, so they are looked up by name. At the boundary the optimizer ends
    # at a tiny number of either sign, which is a variance of 0.
    variances = np.where(fitted.vcomp > 1e-8 * fitted.scale, fitted.vcomp, 0.0)
    deviations = dict(zip(model.exog_vc.names, np.sqrt(variances), strict=True))
    person, item = float(deviations["person"]), float(deviations["item"])
    return MixedModel(effects, person, item, float(np.sqrt(fitted.scale)), bool(fitted.converged))
