"""`exegete train`: one command per recipe."""
