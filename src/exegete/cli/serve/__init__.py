"""`exegete serve`, and the human study that it is asked for."""
