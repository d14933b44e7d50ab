"""The explorer: explain what a model makes of an input, by many methods, and run it again without parts of the input."""
