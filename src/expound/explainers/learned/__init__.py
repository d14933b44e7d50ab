"""Explainers with parameters, and what they attend with."""
