"""Attribution methods. A new one is a file with its class and a line in `registry.py`."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.data.cards import MethodCard
    from expound.explainers.attention.generic_attention import GenericAttention
    from expound.explainers.attention.value_zeroing import ValueZeroing
    from expound.explainers.attention.weights import AttentionAll, AttentionLast, AttentionRollout, ScaledAttention
    from expound.explainers.attribute_examples import attribute
    from expound.explainers.attributive_masking.explainer import AttributiveMasking
    from expound.explainers.backward_rules.decompx_linear import DecompXLinear
    from expound.explainers.backward_rules.gim import Gim
    from expound.explainers.backward_rules.lrp import AttnLrp, CpLrp
    from expound.explainers.base import DimensionwiseExplainer, Explainer, OutputExplainer, SinglePass, TokenScores
    from expound.explainers.check_model import MethodReport, ModelReport
    from expound.explainers.check_model import check_model as check
    from expound.explainers.control import Random
    from expound.explainers.decomposition.alti import Alti
    from expound.explainers.decomposition.decompx import DecompX, DecompXClassifier
    from expound.explainers.decomposition.flash_trace import FlashTrace
    from expound.explainers.decomposition.globenc import GlobEnc
    from expound.explainers.decomposition.information_flow import InformationFlow
    from expound.explainers.differentiation import compute_gradient, compute_gradients
    from expound.explainers.gradients.deep_lift import DeepLift
    from expound.explainers.gradients.embedding_gradient import EmbeddingGradient
    from expound.explainers.gradients.gradient_shap import GradientShap
    from expound.explainers.gradients.input_x_gradient import InputXGradient
    from expound.explainers.gradients.integrated_gradients import IntegratedGradients
    from expound.explainers.gradients.saliency import Saliency
    from expound.explainers.gradients.sequential_integrated_gradients import SequentialIntegratedGradients
    from expound.explainers.gradients.smooth_grad import SmoothGrad
    from expound.explainers.learned.attention_to_source import AttentionToSource
    from expound.explainers.learned.hidden_state_probe import HiddenStateProbe
    from expound.explainers.learned.interpretable_attention import InterpretableAttention
    from expound.explainers.learned.parameterised_attention import ParameterisedAttention
    from expound.explainers.learned.rationale_extractor import RationaleExtractor
    from expound.explainers.learned.trained_citation import TrainedCitation
    from expound.explainers.llm_ranking import LlmRanking
    from expound.explainers.perturbation.context_cite import ContextCite
    from expound.explainers.perturbation.kernel_shap import KernelShap
    from expound.explainers.perturbation.lime import Lime
    from expound.explainers.perturbation.occlusion import Occlusion
    from expound.explainers.perturbation.reagent import Reagent
    from expound.explainers.perturbation.shapley_sampling import ShapleySampling
    from expound.explainers.perturbation.solvex import Solvex
    from expound.explainers.perturbation.spex import Spex
    from expound.explainers.registry import EXPLAINERS, explainer, list_methods
    from expound.explainers.seeding import example_generators, example_seeds, gaussian_noise
    from expound.explainers.units import number_units, spread
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
