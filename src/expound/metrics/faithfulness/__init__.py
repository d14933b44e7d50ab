"""Metrics that remove or keep parts of an input and look at the prediction."""
