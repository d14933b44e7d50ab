"""Tokens and where they stand in a text, also from tokenizers of SentencePiece that do not tell it themselves."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from tokenizers import Encoding

from exegete.errors import ExegeteError


class SentencePieceEncoding(NamedTuple):
    """What of a `tokenizers.Encoding` is read: L tokens, their characters, and which the tokenizer added."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]


def tokenize_text(
    tokenizer: Any, text: str, *, special: bool = True, target: bool = False
) -> Encoding | SentencePieceEncoding:
    """The tokens of a text with their characters.

    Args:
        tokenizer: a fast one, or one around SentencePiece (Marian's).
        text: what it cuts.
        special: whether it adds tokens of its own.
        target: whether the text is what a decoder says.

    Raises:
        ExegeteError: special tokens in the text, of a tokenizer around SentencePiece.
    """
    given = {"text_target": text} if target else {"text": text}
    found = tokenizer(**given, add_special_tokens=special)
    if tokenizer.is_fast:
        fast: Encoding = found.encodings[0]
        return fast
    processor = tokenizer.spm_target if target else tokenizer.spm_source
    tokens, offsets = _pieces(tokenizer, processor, text)
    ids, count = list(found["input_ids"]), len(tokens)
    added = ids[count:]
    if not set(added) <= set(tokenizer.all_special_ids) or len(ids) < count + special:
        raise ExegeteError(f"special tokens stand in the text {text[:40]!r}: leave them out")
    behind = len(added)
    tokens += tokenizer.convert_ids_to_tokens(added)
    return SentencePieceEncoding(ids, tokens, [*offsets, *[(0, 0)] * behind], [0] * count + [1] * behind)


def _pieces(tokenizer: Any, processor: Any, text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """SentencePiece's pieces and their characters, behind a code of the language that Marian wants."""
    codes, rest = tokenizer.remove_language_code(text)
    begun = len(text) - len(rest)
    of_byte = [0, *accumulate(len(each.encode()) for each in rest)]
    characters = {byte: begun + place for place, byte in enumerate(of_byte)}
    pieces = processor.encode(rest, return_type="proto").pieces
    offsets = [(characters[each.begin], characters[each.end]) for each in pieces]
    return [*codes, *(each.piece for each in pieces)], [*[(0, begun)] * len(codes), *offsets]
