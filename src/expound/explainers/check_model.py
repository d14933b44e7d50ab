"""A report on which methods can explain a model, and whether their scores are exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from expound.data.cards import MethodCard
from expound.errors import ExpoundError
from expound.explainers.base import require_assumptions
from expound.explainers.registry import EXPLAINERS, explainer
from expound.models import Batch, ExplainedModel
from expound.models.bi_encoder import BiEncoder
from expound.models.checks import CHECKS
from expound.models.choices import ChoosingModel
from expound.models.hugging_face import MODEL_ERRORS, Probe, find_failure, remember
from expound.models.loading.load import ModelSource, load
from expound.models.token_heads import MASK

State = Literal["exact", "approximate", "refused"]
UNCHECKED = ("control", "interactions", "learned", "prompted", "search")
"""Families of methods that are left out: they draw numbers, are trained for a model, or ask a language model."""
TRIED = ("attention", "decomposition")
"""Families of methods that take few passes, which are run to see what they refuse."""


@dataclass(frozen=True, slots=True)
class MethodReport:
    """What holds for a method: `state`, and why it is approximate or refused."""

    method: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What holds for each method on a model of this type."""

    model_type: str
    methods: tuple[MethodReport, ...]

    def __getitem__(self, method: str) -> MethodReport:
        """Return the report of a method by its id."""
        return {each.method: each for each in self.methods}[method]

    def __str__(self) -> str:
        """Return the report as one line per method."""
        width = max(len(each.method) for each in self.methods)
        return "\n".join(f"{each.method:{width}}  {each.state:11}  {each.reason}".rstrip() for each in self.methods)


def check_model(model: ModelSource, example: Any = None) -> ModelReport:
    """Check a model against what methods assume about it, and return which methods are exact, approximate or refused.

    The same checks run by themselves when a method is first used; `load(check=False)` leaves them out.

    Args:
        model: what `expound.load` takes.
        example: what to check it on; default: a short text, or noise for a model of images.

    Raises:
        ExpoundError: a model that cannot be loaded or encodes no example.
    """
    explained = load(model)
    if example is None:
        example = _make_example(explained)
    batch = explained.encode([example])
    reports = []
    for name, card in EXPLAINERS.cards(MethodCard).items():
        if card.family not in UNCHECKED:
            reports.append(_check_method(explained, batch, name))
    return ModelReport(explained.config.model_type, tuple(reports))


@torch.no_grad()
def _check_method(model: ExplainedModel, batch: Batch, name: str) -> MethodReport:
    method = explainer(name)
    try:
        require_assumptions(method, model, batch)
        if method.card.family in TRIED:
            method.explain(model, batch)
    except ExpoundError as error:
        return MethodReport(name, "refused", str(error))
    if model.dtype.itemsize < 4:
        return MethodReport(name, "approximate", f"weights in {str(model.dtype).removeprefix('torch.')}")
    apart = find_failure(model, "padding", Probe(model, batch))
    return MethodReport(name, "exact", f"{apart}: texts of each length run apart" if apart else "")


@torch.no_grad()
def default_method(model: ExplainedModel) -> str:
    """Return the id of the default method for a model.

    `occlusion` for generated text and functions; else `decompx_linear` if its assumptions are proven on this model,
    also if it is not to be checked, and `integrated_gradients` if not.
    """
    if model.task.is_generated or model.black_box_reason:
        return "occlusion"
    try:
        probe = Probe(model, model.encode([_make_example(model)]))
        for assumption in explainer("decompx_linear").assumes:
            if remember(model, assumption, partial(CHECKS[assumption], model, probe)):
                return "integrated_gradients"
    except (ExpoundError, *MODEL_ERRORS):
        return "integrated_gradients"
    return "decompx_linear"


def _make_example(model: ExplainedModel) -> Any:
    """Return an example of the model's task."""
    if model.modality == "image":
        return np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    row = dict(model.task.sample)
    if MASK in row.get("text", ""):
        row["text"] = row["text"].replace(MASK, model.tokenizer.mask_token)
    if isinstance(model, ChoosingModel | BiEncoder):
        row["text_pair"] = "It is about a model."
    return row
