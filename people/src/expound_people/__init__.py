"""Human studies: annotators rank explanations, mark evidence, or predict the model's answers."""
