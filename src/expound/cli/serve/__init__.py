"""`expound serve` and its human studies."""
