"""Datasets with rationales, the generated corpus, alignment of words and tokens, and the cards of the registries."""

from exegete.data import cards
from exegete.data.alignment import Alignment, Word, align, pool, token_mask, word_mask, words_of
from exegete.data.generated import generated_tokenizer
from exegete.data.load import load_data
from exegete.data.readers import READERS

__all__ = [
    "READERS",
    "Alignment",
    "Word",
    "align",
    "cards",
    "generated_tokenizer",
    "load_data",
    "pool",
    "token_mask",
    "word_mask",
    "words_of",
]
