"""Explanations that decompose the network's own arithmetic."""

# its import makes the assumption `decomposition` checkable for every method that has it
from expound.explainers.decomposition import decompx as decompx
