"""Protocols: a study's file, who may take part, and what a person meets from consent to thanks."""
