"""Training a masking model that explains another model (AML), and the search for the weights of its loss."""
