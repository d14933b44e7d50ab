"""Texts and images with their scores as color."""
