"""`expound explain`: single examples, corpora, generated text."""
