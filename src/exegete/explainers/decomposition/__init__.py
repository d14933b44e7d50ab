"""Explanations that take the network's own arithmetic apart."""

from exegete.explainers.decomposition.alti import Alti
from exegete.explainers.decomposition.decompx import DecompX, DecompXClassifier
from exegete.explainers.decomposition.globenc import GlobEnc

__all__ = ["Alti", "DecompX", "DecompXClassifier", "GlobEnc"]
