"""Explanations that decompose the network's own arithmetic."""
