"""Evaluation protocols of judgements: figures of a model beyond its performance and its explanations' metrics."""
