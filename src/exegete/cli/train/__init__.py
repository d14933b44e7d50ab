"""`exegete train`: a command for each recipe, and its options."""
