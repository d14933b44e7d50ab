"""Figures: curves as SVG, and figures of studies with matplotlib."""
