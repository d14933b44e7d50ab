"""Browsing what `compare` and `study` left: which method, on which example, and where methods disagree."""
