"""Encoding of texts and images as ids or pixels, and of labels as numbers."""
