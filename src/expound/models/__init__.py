"""The model being explained, its batches, what is captured from it, and its predictions on perturbed inputs."""

from expound.models.batch import Batch, Capture, Outputs
from expound.models.explained import ExplainedModel
from expound.models.generation.encoder_decoder import EncoderDecoderModel
from expound.models.generation.model import GeneratingModel
from expound.models.hugging_face import Reference
from expound.models.loading.load import load
from expound.models.perturbation.run import RemovalMethod

__all__ = [
    "Batch",
    "Capture",
    "EncoderDecoderModel",
    "ExplainedModel",
    "GeneratingModel",
    "Outputs",
    "Reference",
    "RemovalMethod",
    "load",
]
