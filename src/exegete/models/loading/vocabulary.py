"""A tokenizer is used only with a vocabulary that is whole and that its model has embeddings for."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from exegete.errors import ExegeteError

SAMPLE = 60
FEWEST = 0.2
"""Of the sampled words of a vocabulary, the share that has to come back as itself."""
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
"""The most frequent words of some languages."""


def check_vocabulary(name: str, tokenizer: Any, rows: int) -> None:
    """Raises ExegeteError for a tokenizer that would hand a model other tokens than it was trained on.

    Args:
        name: where it came from.
        tokenizer: of texts; image processors and what has no vocabulary pass.
        rows: of the model's embeddings.
    """
    if not hasattr(tokenizer, "get_vocab"):
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
    if _share_kept(tokenizer, ordinary) < FEWEST:
        raise ExegeteError(f"the tokenizer of {name} does not know the words of its own vocabulary: it is not whole")
    if len(vocabulary) < rows / 2 and all(_unknown(tokenizer, words) for words in WORDS):
        raise ExegeteError(
            f"the tokenizer of {name} knows {len(vocabulary)} tokens, the model {rows}, and ordinary words are unknown "
            "to it: its vocabulary is not whole"
        )


def _share_kept(tokenizer: Any, ordinary: list[str]) -> float:
    """Of a sample of the longer half of a vocabulary, what is cut into itself again, or into few parts."""
    longer = ordinary[: max(SAMPLE, len(ordinary) // 2)]
    words = {tokenizer.convert_tokens_to_string([word]).strip() for word in longer[:: 1 + len(longer) // SAMPLE]}
    cut = {word: _cut(tokenizer, word) for word in words if word.isalpha() and len(word) > 1}
    kept = [tokenizer.unk_token_id not in ids and len(ids) <= len(word) // 2 for word, ids in cut.items()]
    return sum(kept) / len(kept) if kept else 1.0


def _unknown(tokenizer: Any, text: str) -> bool:
    """Whether most of a text is unknown."""
    ids = _cut(tokenizer, text)
    return not ids or ids.count(tokenizer.unk_token_id) > len(ids) / 2


def _cut(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
