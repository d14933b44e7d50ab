"""A model that learns to mask another model's input, and so explains it (AML)."""

from exegete.explainers.attributive_masking.explainer import AttributiveMasking, MaskingSettings

__all__ = ["AttributiveMasking", "MaskingSettings"]
