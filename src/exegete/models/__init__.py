"""The model being explained, its batches, what is captured from it, and its answers to perturbed inputs."""

from exegete.models.batch import Batch
from exegete.models.explained import ExplainedModel
from exegete.models.generation.encoder_decoder import EncoderDecoderModel
from exegete.models.generation.model import GeneratingModel
from exegete.models.hugging_face import Reference
from exegete.models.loading.load import load
from exegete.models.outputs import Capture, Outputs
from exegete.models.perturbation.run import RemovalMethod

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
