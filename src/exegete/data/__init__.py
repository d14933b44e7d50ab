"""Datasets with rationales, the generated corpus, alignment of words and tokens, and the cards of the registries."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data.alignment import Alignment, Word, align, pool, split_words, token_mask, word_mask
    from exegete.data.generated import generated_tokenizer
    from exegete.data.load import load_data
    from exegete.data.readers import READERS
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "READERS",
    "Alignment",
    "Word",
    "align",
    "generated_tokenizer",
    "load_data",
    "pool",
    "split_words",
    "token_mask",
    "word_mask",
]
