"""Datasets with rationales, the generated corpus, alignment of words and tokens, and the cards of the registries."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data.alignment import Alignment, Word, align, pool, split_words, token_mask, word_mask
    from exegete.data.cards import DataCard
    from exegete.data.generated import generated_tokenizer
    from exegete.data.load import load_data
    from exegete.data.readers.base import Reader, Table, make_text_features, read_text, require_text, split_lines
    from exegete.data.readers.layouts import DividedFile
    from exegete.data.readers.registry import READERS, list_datasets
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "READERS", "Alignment", "DataCard", "DividedFile", "Reader", "Table", "Word", "align", "generated_tokenizer",
    "list_datasets", "load_data", "make_text_features", "pool", "read_text", "require_text", "split_lines",
    "split_words", "token_mask", "word_mask"
]  # fmt: skip
