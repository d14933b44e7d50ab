"""Attributive masking (AML): a model that explains another model by learning to mask its input."""

from expound.explainers.attributive_masking.explainer import AttributiveMasking
from expound.explainers.attributive_masking.settings import MaskingSettings

__all__ = ["AttributiveMasking", "MaskingSettings"]
