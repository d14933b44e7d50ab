"""Explaining one input by many methods, and asking what the model would say without parts of it."""
