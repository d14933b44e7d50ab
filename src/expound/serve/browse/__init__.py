"""Browsing stored results: methods by metric, single examples, and where methods disagree."""
