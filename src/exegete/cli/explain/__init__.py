"""`exegete explain`: single examples, corpora, generated text."""
