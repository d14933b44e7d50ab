"""The model being explained, its batches, what is captured from it, and its perturbed forward passes."""

from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.loading.load import load
from exegete.models.outputs import Outputs
from exegete.models.passes.capture import Capture

__all__ = ["Batch", "Capture", "ExplainedModel", "Outputs", "load"]
