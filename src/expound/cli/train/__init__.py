"""`expound train`: one command per recipe."""
