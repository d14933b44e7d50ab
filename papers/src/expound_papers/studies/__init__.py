"""The studies of the five papers, one module for each family of tables."""
