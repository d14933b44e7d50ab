"""Datasets with rationales, the generated corpus, alignment of words and tokens, and the cards of the registries."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.data.alignment import Alignment, Word, align, pool, split_words, token_mask, word_mask
    from expound.data.cards import DataCard
    from expound.data.generated import generated_tokenizer
    from expound.data.load import load_data
    from expound.data.readers.base import Reader, Table, make_text_features, read_text, require_text, split_lines
    from expound.data.readers.layouts import DividedFile
    from expound.data.readers.registry import READERS, list_datasets
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = [
    "READERS", "Alignment", "DataCard", "DividedFile", "Reader", "Table", "Word", "align", "generated_tokenizer",
    "list_datasets", "load_data", "make_text_features", "pool", "read_text", "require_text", "split_lines",
    "split_words", "token_mask", "word_mask"
]  # fmt: skip
