"""`exegete explain`: examples, corpora, generated text."""
