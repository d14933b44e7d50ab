"""Migrations of the database, one file for each revision."""
