"""The model being explained, its batches, what is captured from it, and its perturbed forward passes."""

from exegete.models.batch import Batch
from exegete.models.capture import Capture
from exegete.models.explained import ExplainedModel
from exegete.models.load import load
from exegete.models.outputs import Outputs

__all__ = ["Batch", "Capture", "ExplainedModel", "Outputs", "load"]
