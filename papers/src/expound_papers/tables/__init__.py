"""Finished runs as tables, figures and pages, with spread and significance."""
