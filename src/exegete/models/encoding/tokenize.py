"""Tokens with their characters, also from SentencePiece tokenizers of transformers that do not give characters."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

from tokenizers import Encoding

from exegete.errors import ExegeteError


class SentencePieceEncoding(NamedTuple):
    """The attributes of a `tokenizers.Encoding` that are used: L tokens, their characters, and a mask of added ones."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]


def tokenize_text(
    tokenizer: Any, text: str, *, special: bool = True, target: bool = False
) -> Encoding | SentencePieceEncoding:
    """Return the tokens of a text with their characters.

    Args:
        tokenizer: a fast tokenizer, or one around SentencePiece (Marian's).
        text: the text.
        special: add special tokens.
        target: the text is one that a decoder generates.

    Raises:
        ExegeteError: special tokens in the text, with a tokenizer around SentencePiece.
    """
    # Marian has separate vocabularies for the languages that it reads and writes.
    argument = {"text_target": text} if target else {"text": text}
    output = tokenizer(**argument, add_special_tokens=special)
    if tokenizer.is_fast:
        encoding: Encoding = output.encodings[0]
        return encoding
    processor = tokenizer.spm_target if target else tokenizer.spm_source
    tokens, offsets = _split_text(tokenizer, processor, text)
    ids, count = list(output["input_ids"]), len(tokens)
    added = ids[count:]
    # transformers splits at special tokens before SentencePiece sees the text, so counts differ if there are any.
    if not set(added) <= set(tokenizer.all_special_ids) or len(ids) < count + special:
        raise ExegeteError(f"special tokens stand in the text {text[:40]!r}: leave them out")
    tokens += tokenizer.convert_ids_to_tokens(added)
    offsets += [(0, 0)] * len(added)
    return SentencePieceEncoding(ids, tokens, offsets, [0] * count + [1] * len(added))


def _split_text(tokenizer: Any, processor: Any, text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return SentencePiece's pieces and their characters, after a language code if the text begins with one."""
    # Multilingual Marian models expect a code such as >>fra<<, which is a token of its own.
    codes, rest = tokenizer.remove_language_code(text)
    start = len(text) - len(rest)
    # SentencePiece counts bytes.
    bytes_before = accumulate((len(character.encode()) for character in rest), initial=0)
    characters = {count: start + place for place, count in enumerate(bytes_before)}
    tokens, offsets = list(codes), [(0, start)] * len(codes)
    for piece in processor.encode(rest, return_type="proto").pieces:
        tokens.append(piece.piece)
        offsets.append((characters[piece.begin], characters[piece.end]))
    return tokens, offsets
