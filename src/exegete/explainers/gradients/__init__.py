"""Gradients, paths of gradients, and DeepLift."""
