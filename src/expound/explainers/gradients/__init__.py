"""Gradients, paths of gradients, and DeepLIFT."""
