"""Migrations of the schema of human studies."""
