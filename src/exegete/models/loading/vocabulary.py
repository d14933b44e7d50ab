"""Check of a tokenizer: its vocabulary is whole, and the model has embeddings for it."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from exegete.errors import ExegeteError

SAMPLE = 60
FEWEST = 0.2
"""The share of sampled words that a tokenizer must tokenize as its own words."""
WORDS = (
    "the and is of a to in it that was for on with as be this are not but have",
    "der die und ist das nicht ein zu mit auf",
    "le la et les des est un une pas que",
    "el los que de y en una por con no",
    "и в не на что с как это по но",
    "的 是 在 不 了 有 我 人 这 他",
    "が は を に の と で も する ない",
    "في من على أن إلى هذا عن مع لا ما",
)
"""The most frequent words of some languages, one of which any usable vocabulary knows."""


def check_vocabulary(name: str, tokenizer: Any, rows: int | None) -> None:
    """Raise ExegeteError for a tokenizer that would give the model other tokens than it was trained on.

    transformers loads a damaged or missing vocabulary without an error, and most words become the unknown token.

    Args:
        name: the checkpoint.
        tokenizer: the tokenizer; image processors, which have no vocabulary, pass.
        rows: the number of the model's embeddings; None for models that look up none, which pass.
    """
    if rows is None or not hasattr(tokenizer, "get_vocab"):
        return
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    word, highest = max(vocabulary.items(), key=itemgetter(1), default=("", -1))
    if highest >= rows:
        raise ExegeteError(
            f"the tokenizer of {name} has the token {word!r:.40} with id {highest}, the model has embeddings for "
            f"{rows} tokens: they do not belong together"
        )
    length = getattr(tokenizer, "model_max_length", None)
    if isinstance(length, int | float) and length < 4:
        raise ExegeteError(f"the tokenizer of {name} has model_max_length {length}: nothing fits into that")
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    ordinary = sorted((word for word in vocabulary if word not in special), key=lambda word: (-len(word), word))
    if not ordinary:
        raise ExegeteError(f"the tokenizer of {name} knows no word: files of it are missing, as tokenizer.json")
    if _share_known(tokenizer, ordinary) < FEWEST:
        raise ExegeteError(f"the tokenizer of {name} does not know the words of its own vocabulary: it is not whole")
    if len(vocabulary) < rows / 2 and all(_is_mostly_unknown(tokenizer, words) for words in WORDS):
        raise ExegeteError(
            f"the tokenizer of {name} knows {len(vocabulary)} tokens, the model {rows}, and ordinary words are unknown "
            "to it: its vocabulary is not whole"
        )


def _share_known(tokenizer: Any, ordinary: list[str]) -> float:
    """Return the share of sampled words that are tokenized as themselves or into few parts."""
    # Short words would be tokenized by characters without any merge rules, so only the longer half is sampled.
    longer = ordinary[: max(SAMPLE, len(ordinary) // 2)]
    words = {tokenizer.convert_tokens_to_string([word]).strip() for word in longer[:: 1 + len(longer) // SAMPLE]}
    cut = {word: _tokenize(tokenizer, word) for word in words if word.isalpha() and len(word) > 1}
    kept = [tokenizer.unk_token_id not in ids and len(ids) <= len(word) // 2 for word, ids in cut.items()]
    return sum(kept) / len(kept) if kept else 1.0


def _is_mostly_unknown(tokenizer: Any, text: str) -> bool:
    """Return whether more than half of a text's tokens are unknown."""
    ids = _tokenize(tokenizer, text)
    return not ids or ids.count(tokenizer.unk_token_id) > len(ids) / 2


def _tokenize(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
