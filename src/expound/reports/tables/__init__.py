"""Tables of results: cells, ties, verdicts, and each format they are written in."""
