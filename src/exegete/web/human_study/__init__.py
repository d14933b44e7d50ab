"""Human studies: people rank explanations, mark evidence, or predict what the model says."""
