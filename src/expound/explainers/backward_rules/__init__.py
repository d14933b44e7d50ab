"""Gradients with modified derivative rules."""
