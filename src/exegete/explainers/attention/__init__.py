"""Attention weights, and what their values and gradients add."""
