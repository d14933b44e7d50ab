"""The registry of explainers by their id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from exegete.data.cards import MethodCard
from exegete.data.registry import Registry
from exegete.data.specs import BOOLEANS, parameters, split
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    import pandas as pd

    from exegete.explainers.base import Explainer
    from exegete.models import ExplainedModel
    from exegete.reports.attributions import Attribution
    from exegete.reports.generated import GeneratedAttribution

EXPLAINERS: Registry[type[Explainer]] = Registry(
    "method",
    "exegete.explainers",
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
        "parameterised_attention": "learned.parameterised_attention:ParameterisedAttention",
        "interpretable_attention": "learned.interpretable_attention:InterpretableAttention",
        "attributive_masking": "attributive_masking.explainer:AttributiveMasking",
    },
)


def explainer(spec: str | Explainer, **params: Any) -> Explainer:
    """An explainer by id, as `integrated_gradients`, `integrated_gradients?n_steps=20`, or `ID:PATH` for a learned one.

    `parameterised_attention?untrained` and `interpretable_attention?untrained&normaliser=softmax` learned nothing yet.

    Raises:
        ExegeteError: an unknown id or parameter; the message names the valid ones.
    """
    if not isinstance(spec, str):
        if not hasattr(spec, "explain"):
            raise ExegeteError(
                f"a method is one id, as 'integrated_gradients', or an explainer, not a {type(spec).__name__}: "
                "ask for each in turn, or for all with exegete.compare(model, data, methods)"
            )
        if params:
            raise ExegeteError(f"{spec.name} is made already: parameters ({', '.join(params)}) go with an id only")
        return spec
    address, asked = split(spec)
    given: dict[str, Any] = asked | params
    name, _, path = address.partition(":")
    kind = EXPLAINERS[name]
    if path:
        return kind.from_pretrained(path).with_params(**given)
    if kind.card.learned and BOOLEANS.get(given.pop("untrained", "false")):
        from exegete.explainers.learned.untrained import UntrainedExplainer  # imported when used

        return UntrainedExplainer.from_options(EXPLAINERS[name], given)
    if kind.card.learned:
        raise ExegeteError(f"{name} is learned: give the folder it was saved in, as {name}:PATH")
    return kind(**parameters(name, kind, given))


def make_seeded(method: str | Explainer, seed: int) -> Explainer:
    """The explainer with this seed, if it has one and the spec does not name its own."""
    return explainer(method, **seed_params(method, seed))


def seed_params(method: str | Explainer, seed: int) -> dict[str, Any]:
    """The seed as a parameter of a method that has one and whose spec does not name its own."""
    takes = isinstance(method, str) and "seed" in explainer(method).params and "seed=" not in method
    return {"seed": seed} if takes else {}


def add_seed(spec: str, seed: int) -> str:
    """The spec with this seed, where the method has one and the spec does not name its own."""
    named = "".join(f"{name}={value}" for name, value in seed_params(spec, seed).items())
    return f"{spec}{'&' if '?' in spec else '?'}{named}" if named else spec


def make_titles(specs: Iterable[str]) -> dict[str, str]:
    """By spec, the method in people's words, its folder and parameters in brackets; where two were alike, the spec."""
    found = {spec: _title(spec) for spec in specs}
    count = Counter(found.values())
    return {spec: title if count[title] == 1 else spec for spec, title in found.items()}


def _title(spec: str) -> str:
    address, _, given = spec.partition("?")
    name, _, path = address.partition(":")
    if name not in EXPLAINERS:
        return spec
    more = [path.rstrip("/").rpartition("/")[2], *given.split("&")]
    said = ", ".join(each for each in more if each)
    return f"{EXPLAINERS.card(name, MethodCard).title}{f' ({said})' if said else ''}"


def describe_score(item: Attribution | GeneratedAttribution, task: str) -> str:
    """What a score of the attribution is, in a task (its name); empty where its method does not say."""
    name = item.params.get("of", item.method)
    if name not in EXPLAINERS:
        return ""
    return EXPLAINERS.card(name, MethodCard).scores(task, item.params.get("output"), signed=item.signed)


def default_method(model: ExplainedModel) -> str:
    """The method that explains a model unless another is asked for: the best that its family allows.

    `decompx_linear` where the family has a record, else `integrated_gradients`; what a model says, by `occlusion`.
    """
    from exegete.models.families import FAMILIES

    if model.task.name == "generation":
        return "occlusion"
    return "decompx_linear" if model.config.model_type in FAMILIES else "integrated_gradients"


def list_methods() -> pd.DataFrame:
    """Every method: id, title, family, signed, differentiable, learned, cost (F forward, B backward passes), paper."""
    import pandas as pd

    columns = ("name", "title", "family", "signed", "differentiable", "learned", "cost", "paper")
    cards = EXPLAINERS.cards(MethodCard).values()
    return pd.DataFrame([{column: getattr(card, column) for column in columns} for card in cards])
