"""The explorer: explain a model's output by many methods, and run the model again without parts of the input."""
