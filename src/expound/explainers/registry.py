"""The registry of explainers by their id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from expound.data.cards import MethodCard as MethodCard  # noqa: PLC0414  # a public name of the package
from expound.data.registry import Registry
from expound.errors import ExpoundError

if TYPE_CHECKING:
    import pandas as pd

    from expound.explainers.base import Explainer
    from expound.models import ExplainedModel
    from expound.reports.explanations import Explanation

EXPLAINERS: Registry[type[Explainer]] = Registry(
    "method",
    "expound.explainers",
    {
        "random": "control:Random",
        "saliency": "gradients.saliency:Saliency",
        "input_x_gradient": "gradients.input_x_gradient:InputXGradient",
        "smooth_grad": "gradients.smooth_grad:SmoothGrad",
        "integrated_gradients": "gradients.integrated_gradients:IntegratedGradients",
        "sequential_integrated_gradients": "gradients.sequential_integrated_gradients:SequentialIntegratedGradients",
        "gradient_shap": "gradients.gradient_shap:GradientShap",
        "deep_lift": "gradients.deep_lift:DeepLift",
        "attention_last": "attention.weights:AttentionLast",
        "attention_all": "attention.weights:AttentionAll",
        "scaled_attention": "attention.weights:ScaledAttention",
        "attention_rollout": "attention.weights:AttentionRollout",
        "generic_attention": "attention.generic_attention:GenericAttention",
        "value_zeroing": "attention.value_zeroing:ValueZeroing",
        "globenc": "decomposition.globenc:GlobEnc",
        "alti": "decomposition.alti:Alti",
        "information_flow": "decomposition.information_flow:InformationFlow",
        "flash_trace": "decomposition.flash_trace:FlashTrace",
        "decompx": "decomposition.decompx:DecompX",
        "decompx_classifier": "decomposition.decompx:DecompXClassifier",
        "decompx_linear": "backward_rules.decompx_linear:DecompXLinear",
        "attn_lrp": "backward_rules.lrp:AttnLrp",
        "cp_lrp": "backward_rules.lrp:CpLrp",
        "gim": "backward_rules.gim:Gim",
        "occlusion": "perturbation.occlusion:Occlusion",
        "lime": "perturbation.lime:Lime",
        "kernel_shap": "perturbation.kernel_shap:KernelShap",
        "shapley_sampling": "perturbation.shapley_sampling:ShapleySampling",
        "context_cite": "perturbation.context_cite:ContextCite",
        "reagent": "perturbation.reagent:Reagent",
        "spex": "perturbation.spex:Spex",
        "solvex": "perturbation.solvex:Solvex",
        "llm_ranking": "llm_ranking:LlmRanking",
        "attention_to_source": "learned.attention_to_source:AttentionToSource",
        "hidden_state_probe": "learned.hidden_state_probe:HiddenStateProbe",
        "citation": "learned.trained_citation:TrainedCitation",
        "parameterized_attention": "learned.parameterized_attention:ParameterizedAttention",
        "rationale_extractor": "learned.rationale_extractor:RationaleExtractor",
        "interpretable_attention": "learned.interpretable_attention:InterpretableAttention",
        "attributive_masking": "attributive_masking.explainer:AttributiveMasking",
    },
)


def explainer(spec: str | Explainer, model: ExplainedModel | None = None, **params: Any) -> Explainer:
    """Return the explainer of a spec: an id, `integrated_gradients?n_steps=20`, or `ID:PATH` for a learned one.

    `ID?untrained` is a learned explainer before training, with all coefficients equal, which needs the `model` that it
    is to explain. Explainers are returned as they are.

    Raises:
        ExpoundError: an unknown id or parameter (the message names the valid ones), or `ID?untrained` without a model.
    """
    if not isinstance(spec, str):
        if not hasattr(spec, "explain"):
            raise ExpoundError(
                f"a method is one id, as 'integrated_gradients', or an explainer, not a {type(spec).__name__}: "
                "ask for each in turn, or for all with expound.compare(model, data, methods)"
            )
        if params:
            raise ExpoundError(f"{spec.name} is made already: parameters ({', '.join(params)}) go with an id only")
        return spec
    part, path, options = EXPLAINERS.read(spec)
    return part.from_spec(path, options | params, model)


def describe_spec(spec: str) -> dict[str, Any]:
    """Return the name and the parameters of a spec's explainer, for `ID?untrained` without the sizes of a model.

    Raises:
        ExpoundError: as `explainer` does.
    """
    part, path, options = EXPLAINERS.read(spec)
    if part.card.learned and not path:
        return {"name": part.card.name, **part.parse_options(options)}
    made = part.from_spec(path, options)
    return {"name": made.name, **made.params}


def add_seed(method: str | Explainer, seed: int) -> str | Explainer:
    """Return the method with this seed, if it is a spec that sets no seed of a method that has one."""
    if not isinstance(method, str):
        return method
    part, _, options = EXPLAINERS.read(method)
    if "seed" in options or "seed" not in getattr(part, "__dataclass_fields__", {}):
        return method
    return f"{method}{'&' if '?' in method else '?'}seed={seed}"


def make_titles(specs: Iterable[str]) -> dict[str, str]:
    """Return a title per spec, with folder and parameters in brackets; the spec itself if two titles are equal."""
    titles = {spec: _make_title(spec) for spec in specs}
    count = Counter(titles.values())
    for spec, title in titles.items():
        if count[title] > 1:
            titles[spec] = spec
    return titles


def _make_title(spec: str) -> str:
    address, _, params = spec.partition("?")
    name, _, path = address.partition(":")
    if name not in EXPLAINERS:
        return spec
    folder = path.rstrip("/").rpartition("/")[2]
    details = ", ".join(text for text in (folder, *params.split("&")) if text)
    title = EXPLAINERS.card(name, MethodCard).title
    return f"{title} ({details})" if details else title


def describe_score(item: Explanation, task: str) -> str:
    """Return what a score of the explanation means in a task (its name), empty if the method's card does not say."""
    name = item.params.get("of", item.method)
    if name not in EXPLAINERS:
        return ""
    return EXPLAINERS.card(name, MethodCard).describe_scores(task, item.params.get("output"), signed=item.signed)


def list_methods() -> pd.DataFrame:
    """Return a table of all methods: id, title, family, signed, differentiable, learned, cost, paper.

    Costs are in forward (F) and backward (B) passes per example.
    """
    import pandas as pd

    columns = ("name", "title", "family", "signed", "differentiable", "learned", "cost", "paper")
    rows = []
    for card in EXPLAINERS.cards(MethodCard).values():
        rows.append({column: getattr(card, column) for column in columns})
    return pd.DataFrame(rows)
