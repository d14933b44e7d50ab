"""Perturbed inputs: masks as rows, equal rows once, passes packed by tokens."""
