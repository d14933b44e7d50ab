"""Gradients whose backward pass follows other rules."""
