"""Compare methods on one model, and explain corpora with one method."""
