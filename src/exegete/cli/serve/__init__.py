"""`exegete serve` and its human studies."""
