"""Attribution methods. A new one is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data.cards import MethodCard
    from exegete.explainers.attention.generic_attention import GenericAttention
    from exegete.explainers.attention.value_zeroing import ValueZeroing
    from exegete.explainers.attention.weights import AttentionAll, AttentionLast, AttentionRollout, ScaledAttention
    from exegete.explainers.attribute_examples import attribute
    from exegete.explainers.attributive_masking.explainer import AttributiveMasking
    from exegete.explainers.backward_rules.decompx_linear import DecompXLinear
    from exegete.explainers.backward_rules.gim import Gim
    from exegete.explainers.backward_rules.lrp import AttnLrp, CpLrp
    from exegete.explainers.base import (
        DimensionwiseExplainer,
        Explainer,
        OutputExplainer,
        SinglePass,
        TokenScores,
        compute_gradient,
        compute_gradients,
    )
    from exegete.explainers.check_model import MethodReport, ModelReport
    from exegete.explainers.check_model import check_model as check
    from exegete.explainers.control import Random
    from exegete.explainers.decomposition.alti import Alti
    from exegete.explainers.decomposition.decompx import DecompX, DecompXClassifier
    from exegete.explainers.decomposition.flash_trace import FlashTrace
    from exegete.explainers.decomposition.globenc import GlobEnc
    from exegete.explainers.decomposition.information_flow import InformationFlow
    from exegete.explainers.gradients.deep_lift import DeepLift
    from exegete.explainers.gradients.embedding_gradient import EmbeddingGradient
    from exegete.explainers.gradients.gradient_shap import GradientShap
    from exegete.explainers.gradients.input_x_gradient import InputXGradient
    from exegete.explainers.gradients.integrated_gradients import IntegratedGradients
    from exegete.explainers.gradients.saliency import Saliency
    from exegete.explainers.gradients.sequential_integrated_gradients import SequentialIntegratedGradients
    from exegete.explainers.gradients.smooth_grad import SmoothGrad
    from exegete.explainers.learned.attention_to_source import AttentionToSource
    from exegete.explainers.learned.hidden_state_probe import HiddenStateProbe
    from exegete.explainers.learned.interpretable_attention import InterpretableAttention
    from exegete.explainers.learned.parameterised_attention import ParameterisedAttention
    from exegete.explainers.learned.rationale_extractor import RationaleExtractor
    from exegete.explainers.learned.trained_citation import TrainedCitation
    from exegete.explainers.llm_ranking import LlmRanking
    from exegete.explainers.perturbation.context_cite import ContextCite
    from exegete.explainers.perturbation.kernel_shap import KernelShap
    from exegete.explainers.perturbation.lime import Lime
    from exegete.explainers.perturbation.occlusion import Occlusion
    from exegete.explainers.perturbation.reagent import Reagent
    from exegete.explainers.perturbation.shapley_sampling import ShapleySampling
    from exegete.explainers.perturbation.solvex import Solvex
    from exegete.explainers.perturbation.spex import Spex
    from exegete.explainers.registry import EXPLAINERS, explainer, list_methods
    from exegete.explainers.seeding import example_generators, example_seeds, gaussian_noise
    from exegete.explainers.units import number_units, spread
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "EXPLAINERS",
    "Alti",
    "AttentionAll",
    "AttentionLast",
    "AttentionRollout",
    "AttentionToSource",
    "AttnLrp",
    "AttributiveMasking",
    "ContextCite",
    "CpLrp",
    "DecompX",
    "DecompXClassifier",
    "DecompXLinear",
    "DeepLift",
    "DimensionwiseExplainer",
    "EmbeddingGradient",
    "Explainer",
    "FlashTrace",
    "GenericAttention",
    "Gim",
    "GlobEnc",
    "GradientShap",
    "HiddenStateProbe",
    "InformationFlow",
    "InputXGradient",
    "IntegratedGradients",
    "InterpretableAttention",
    "KernelShap",
    "Lime",
    "LlmRanking",
    "MethodCard",
    "MethodReport",
    "ModelReport",
    "Occlusion",
    "OutputExplainer",
    "ParameterisedAttention",
    "Random",
    "RationaleExtractor",
    "Reagent",
    "Saliency",
    "ScaledAttention",
    "SequentialIntegratedGradients",
    "ShapleySampling",
    "SinglePass",
    "SmoothGrad",
    "Solvex",
    "Spex",
    "TokenScores",
    "TrainedCitation",
    "ValueZeroing",
    "attribute",
    "check",
    "compute_gradient",
    "compute_gradients",
    "example_generators",
    "example_seeds",
    "explainer",
    "gaussian_noise",
    "list_methods",
    "number_units",
    "spread",
]
