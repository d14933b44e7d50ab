"""Explanations by inputs from which parts were removed."""
