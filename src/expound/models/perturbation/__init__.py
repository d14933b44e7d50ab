"""Predictions on perturbed inputs: keep-masks become inputs, equal inputs are run once, passes are packed by tokens."""
