"""Training a masking model that explains another model (AML), and the search for its loss's weights."""
