"""Methods based on attention weights, with their values and gradients."""
