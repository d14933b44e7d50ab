"""Figures as SVG: curves, scatter plots and those of studies."""
