"""Runs of a study: the grid, the work of one cell, and the store that keeps finished ones."""
