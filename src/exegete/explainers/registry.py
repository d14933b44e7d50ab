"""The registry of explainers by their id."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pandas as pd

from exegete.data.specs import parameters, split
from exegete.errors import ExegeteError, unknown
from exegete.explainers.attention import AttentionAll, AttentionLast, AttentionRollout, ScaledAttention
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.base import Explainer
from exegete.explainers.control import Random
from exegete.explainers.decomposition import Alti, DecompX, DecompXClassifier, GlobEnc
from exegete.explainers.decompx_linear import DecompXLinear
from exegete.explainers.deep_lift import DeepLift
from exegete.explainers.gradient_shap import GradientShap
from exegete.explainers.input_x_gradient import InputXGradient
from exegete.explainers.integrated_gradients import IntegratedGradients
from exegete.explainers.interpretable_attention import InterpretableAttention
from exegete.explainers.kernel_shap import KernelShap
from exegete.explainers.lime import Lime
from exegete.explainers.llm_ranking import LlmRanking
from exegete.explainers.occlusion import Occlusion
from exegete.explainers.parameterised_attention import ParameterisedAttention
from exegete.explainers.saliency import Saliency
from exegete.explainers.sequential_integrated_gradients import SequentialIntegratedGradients
from exegete.explainers.shapley_sampling import ShapleySampling
from exegete.explainers.smooth_grad import SmoothGrad
from exegete.explainers.solvex import Solvex
from exegete.explainers.value_zeroing import ValueZeroing

EXPLAINERS: dict[str, type[Explainer]] = {
    method.card.name: method
    for method in (
        Random,
        Saliency,
        InputXGradient,
        SmoothGrad,
        IntegratedGradients,
        SequentialIntegratedGradients,
        GradientShap,
        DeepLift,
        AttentionLast,
        AttentionAll,
        ScaledAttention,
        AttentionRollout,
        ValueZeroing,
        GlobEnc,
        Alti,
        DecompX,
        DecompXClassifier,
        DecompXLinear,
        Occlusion,
        Lime,
        KernelShap,
        ShapleySampling,
        Solvex,
        LlmRanking,
        ParameterisedAttention,
        InterpretableAttention,
        AttributiveMasking,
    )
}
ENTRY_POINTS = "exegete.explainers"


def explainer(spec: str | Explainer, **params: Any) -> Explainer:
    """An explainer by id, as `integrated_gradients`, `integrated_gradients?n_steps=20`, or `ID:PATH` for a learned one.

    Installed packages add methods through the entry point group `exegete.explainers`; a native id is never replaced.

    Raises:
        ExegeteError: an unknown id or parameter; the message names the valid ones.
    """
    if isinstance(spec, Explainer):
        if params:
            raise ExegeteError(f"{spec.name} is made already: parameters ({', '.join(params)}) go with an id only")
        return spec
    address, given = split(spec)
    name, _, path = address.partition(":")
    found = known()
    if name not in found:
        raise unknown("method", name, found)
    kind = found[name]
    if path:
        return kind.from_pretrained(path).configured(**given, **params)
    if kind.card.learned:
        raise ExegeteError(f"{name} is learned: give the folder it was saved in, as {name}:PATH")
    return kind(**parameters(name, kind, given | params))


def known() -> dict[str, type[Explainer]]:
    """Native and installed explainers by id."""
    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    return {name: point.load() for name, point in installed.items() if name not in EXPLAINERS} | EXPLAINERS


def methods() -> pd.DataFrame:
    """Every method: id, family, signed, differentiable, learned, cost in forward (F) and backward (B) passes, paper."""
    cards = [kind.card for kind in known().values()]
    columns = ("name", "family", "signed", "differentiable", "learned", "cost", "paper")
    return pd.DataFrame([{column: getattr(card, column) for column in columns} for card in cards])
