"""Locks of models, and blocks after which a model and the random state are as they were before."""
