"""Tokens of texts with their characters, also of texts inside a larger one, a template."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from tokenizers import Encoding, Tokenizer

from expound.errors import ExpoundError

SpecialTokens = Literal["all", "before"] | None
_copies: WeakKeyDictionary[Any, Tokenizer] = WeakKeyDictionary()
SPACE = re.compile(r"\s*")
FIELD = re.compile(r"\{(text|text_pair)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with a place for the text, and one for the second text of a pair; other braces are plain characters.

    `pieces` are the constant texts, and `sides` the numbers of the texts between them.
    """

    pieces: tuple[str, ...]
    sides: tuple[int, ...]

    @classmethod
    def parse(cls, template: str) -> Template:
        """Return the template of a text with `{text}` once, and `{text_pair}` at most once.

        Raises:
            ExpoundError: other numbers of fields.
        """
        parts = FIELD.split(template)
        names = parts[1::2]
        if sorted(names) not in (["text"], ["text", "text_pair"]):
            raise ExpoundError(
                f"a template has {{text}} once and {{text_pair}} at most once, got {template!r:.80} with "
                + (", ".join(f"{{{name}}}" for name in names) or "neither")
            )
        return cls(tuple(parts[::2]), tuple(("text", "text_pair").index(name) for name in names))

    def fill(self, texts: tuple[str, ...]) -> tuple[str, dict[int, tuple[int, int]]]:
        """Return the whole prompt, and the characters of each text in it.

        Raises:
            ExpoundError: another number of texts than of places.
        """
        if len(texts) != len(self.sides):
            raise ExpoundError(f"the template has {len(self.sides)} place(s) for texts, the example has {len(texts)}")
        whole, places = self.pieces[0], {}
        for side, after in zip(self.sides, self.pieces[1:], strict=True):
            places[side] = (len(whole), len(whole) + len(texts[side]))
            whole += texts[side] + after
        return whole, places


@dataclass(frozen=True, slots=True)
class TemplateEncoding:
    """The tokens of a prompt with the attributes of `tokenizers.Encoding`; all but the texts' tokens are special."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]
    type_ids: list[int]
    overflowing: tuple[TemplateEncoding, ...] = ()


def encode_template(
    tokenizer: Any,
    template: Template,
    texts: tuple[str, ...],
    *,
    special: SpecialTokens = "all",
    literal: Collection[int] | None = None,
) -> TemplateEncoding:
    """Return the tokens of the texts in the template.

    A token that holds characters of both a text and the template belongs to the template.

    Args:
        tokenizer: the tokenizer.
        template: the template.
        texts: as many as it has places.
        special: the special tokens to add: all, only the ones before the prompt, or None.
        literal: numbers of the texts in which special tokens are plain characters; default: all.
    """
    whole, places = template.fill(texts)
    spans = [span for side, span in places.items() if literal is None or side in literal]
    encoding = tokenize_text(tokenizer, whole, special=special is not None, literal=spans)
    stop = len(encoding.ids)
    if special == "before":
        # A special token that is written in the text has characters; one that the tokenizer added has none.
        while stop and encoding.special_tokens_mask[stop - 1] and not encoding.offsets[stop - 1][1]:
            stop -= 1
    sides: list[int | None] = []
    offsets: list[tuple[int, int]] = []
    for span, is_added in zip(encoding.offsets[:stop], encoding.special_tokens_mask, strict=False):
        side = None if is_added else _find_side(span, whole, places)
        sides.append(side)
        if side is None:
            offsets.append((0, 0))
        else:
            # Offsets of a text begin at its first character; white space before it is cut off.
            offsets.append((max(span[0] - places[side][0], 0), span[1] - places[side][0]))
    is_special = [int(side is None) for side in sides]
    return TemplateEncoding(encoding.ids[:stop], encoding.tokens[:stop], offsets, sides, is_special, [0] * stop)


def fit_template(
    tokenizer: Any,
    template: Template,
    texts: tuple[str, ...],
    max_length: int,
    *,
    special: SpecialTokens = "all",
    literal: Collection[int] | None = None,
) -> tuple[TemplateEncoding, tuple[str, ...]]:
    """Return the tokens of the texts in their template and the texts, the longest text cut at its end until all fits.

    Raises:
        ExpoundError: the template leaves no room for a text.
    """
    encoding = encode_template(tokenizer, template, texts, special=special, literal=literal)
    # A cut text may have more tokens than planned, since its last word is tokenized anew.
    while len(encoding.ids) > max_length:
        excess = len(encoding.ids) - max_length
        longest = max(range(len(texts)), key=encoding.sequence_ids.count)
        own = [place for place, side in enumerate(encoding.sequence_ids) if side == longest]
        if len(own) <= excess:
            raise ExpoundError(
                f"the prompt without its longest text has {len(encoding.ids) - len(own)} tokens, and {max_length} fit: "
                "use a shorter template, fewer shots or documents, or a shorter response"
            )
        end = encoding.offsets[own[-excess]][0]
        texts = (*texts[:longest], texts[longest][:end].rstrip(), *texts[longest + 1 :])
        encoding = encode_template(tokenizer, template, texts, special=special, literal=literal)
    return encoding, texts


def _find_side(span: tuple[int, int], whole: str, places: Mapping[int, tuple[int, int]]) -> int | None:
    """Return the number of the text that contains a token's characters, apart from white space before them."""
    start, end = span
    # Many tokenizers count the space before a word as part of its token (" film").
    lead = len(whole[start:end]) - len(whole[start:end].lstrip())
    begin = min(start + lead, end - 1)
    for side, (first, last) in places.items():
        if first <= begin and start < end <= last:
            return side
    return None


def encode_slowly(
    tokenizer: Any, texts: tuple[str, ...], *, special: bool = True, max_length: int | None = None,
    truncation: str = "longest_first",
) -> TemplateEncoding:  # fmt: skip
    """Return the tokens of a text or a pair by a tokenizer without a fast version (ESM, ByT5).

    Their characters are those that they spell, if together they spell the whole text.

    Raises:
        ExpoundError: the tokens do not spell the text, or are put together in an unknown way.
    """
    ids, offsets = list[list[int]](), list[list[tuple[int, int]]]()
    unknown = f"{type(tokenizer).__name__} has no fast version, and its tokens"
    for text in texts:
        tokens = tokenizer.tokenize(text)
        found = _spell(text, tokens)
        if found is None:
            raise ExpoundError(f"{unknown} do not spell the text {text[:40]!r}, so they have no characters to explain")
        offsets.append(found)
        ids.append(tokenizer.convert_tokens_to_ids(tokens))
    kept, most = ids, sum(map(len, ids)) + special * tokenizer.num_special_tokens_to_add(pair=len(ids) > 1)
    if max_length is not None and most > max_length:
        remaining = tokenizer.truncate_sequences(
            *ids, num_tokens_to_remove=most - max_length, truncation_strategy=truncation
        )
        kept = list(remaining[: len(ids)])
    limits = {"truncation": truncation, "max_length": max_length} if max_length is not None else {}
    made = tokenizer.prepare_for_model(
        *kept, add_special_tokens=special, return_special_tokens_mask=True, return_token_type_ids=True
    )
    whole, added = list(made["input_ids"]), list(made["special_tokens_mask"])
    rows, cut = list[tuple[int, int, tuple[int, int]]](), list[TemplateEncoding]()
    for side, (part, full, spans) in enumerate(zip(kept, ids, offsets, strict=True)):
        # Tokens are cut off at the end, unless the tokenizer was told otherwise.
        rows += [(number, side, span) for number, span in zip(part, spans, strict=False)]
        lost = spans[len(part) :]
        count, names = len(lost), tokenizer.convert_ids_to_tokens(full[len(part) :])
        cut.append(TemplateEncoding(full[len(part) :], names, lost, [side] * count, [0] * count, [0] * count))
    is_proven = (
        all(part == full[: len(part)] for part, full in zip(kept, ids, strict=True))
        and len(added) == len(whole)
        and [number for number, mark in zip(whole, added, strict=False) if not mark] == [row[0] for row in rows]
        and list(tokenizer(*texts, add_special_tokens=special, **limits)["input_ids"]) == whole
    )
    if not is_proven:
        raise ExpoundError(f"{unknown} are not those of its text {texts[0][:40]!r} in their order: it is not explained")
    places = iter(rows)
    owners = [(None, (0, 0)) if mark else next(places)[1:] for mark in added]
    return TemplateEncoding(
        ids=whole,
        tokens=tokenizer.convert_ids_to_tokens(whole),
        offsets=[span for _, span in owners],
        sequence_ids=[side for side, _ in owners],
        special_tokens_mask=added,
        type_ids=list(made["token_type_ids"]),
        overflowing=tuple(each for each in cut if each.ids),
    )


def _spell(text: str, tokens: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return each token's characters if the tokens are the text without white space, or its bytes; else None."""
    offsets, cursor = list[tuple[int, int]](), 0
    for token in tokens:
        space = SPACE.match(text, cursor)
        if space is not None and not text.startswith(token, cursor):
            cursor = space.end()
        offsets.append((cursor, cursor + len(token)))
        cursor += len(token)
    if all(text[start:end] == token for token, (start, end) in zip(tokens, offsets, strict=True)):
        return offsets if not text[cursor:].strip() else None
    # ByT5 writes each byte as the character of that number.
    pieces = [token.encode("latin-1" if len(token) == 1 and token < "\u0100" else "utf-8") for token in tokens]
    owner = [place for place, character in enumerate(text) for _ in character.encode()]
    ends = list(accumulate(map(len, pieces)))
    if b"".join(pieces) != text.encode() or not all(pieces):
        return None
    return [(owner[end - len(piece)], owner[end - 1] + 1) for piece, end in zip(pieces, ends, strict=True)]


class SplitEncoding(NamedTuple):
    """The attributes of a `tokenizers.Encoding` that are used: L tokens, their characters, and a mask of added ones."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special_tokens_mask: list[int]

    def extend(self, part: Encoding, start: int) -> None:
        """Append the tokens of a part of the text that begins at a character."""
        self.ids.extend(part.ids)
        self.tokens.extend(part.tokens)
        self.offsets.extend((start + first, start + last) for first, last in part.offsets)
        self.special_tokens_mask.extend(part.special_tokens_mask)

    def append(self, whole: Encoding, place: int) -> None:
        """Append one token of an encoding of the whole text."""
        self.ids.append(whole.ids[place])
        self.tokens.append(whole.tokens[place])
        self.offsets.append(whole.offsets[place])
        self.special_tokens_mask.append(whole.special_tokens_mask[place])


def tokenize_text(
    tokenizer: Any, text: str, *, special: bool = True, target: bool = False, literal: Sequence[tuple[int, int]] = ()
) -> Encoding | SplitEncoding | TemplateEncoding:
    """Return the tokens of a text with their characters.

    Args:
        tokenizer: a fast tokenizer, one around SentencePiece (Marian's), or one whose tokens spell their text.
        text: the text.
        special: add special tokens.
        target: the text is one that a decoder generates.
        literal: characters of documents and users' texts, in which special tokens are plain characters: a document
            could end its message otherwise, and begin another one.

    Raises:
        ExpoundError: special tokens in the text, with a tokenizer that is not fast, or one that loses characters.
    """
    # Marian has separate vocabularies for the languages that it reads and writes.
    argument = {"text_target": text} if target else {"text": text}
    output = tokenizer(**argument, add_special_tokens=special)
    if tokenizer.is_fast:
        encoding: Encoding = output.encodings[0]
        return _split_special_tokens(tokenizer, text, encoding, literal)
    if not hasattr(tokenizer, "spm_source"):
        spelled = encode_slowly(tokenizer, (text,), special=special)
        if list(output["input_ids"]) != spelled.ids:
            raise ExpoundError(
                f"{type(tokenizer).__name__} writes {text[:40]!r} by other tokens than it reads: give a response as ids"
            )
        control = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        for number, (start, end) in zip(spelled.ids, spelled.offsets, strict=True):
            if number in control and any(start < last and first < end for first, last in literal):
                raise ExpoundError(f"special tokens stand in the text {text[:40]!r}: leave them out")
        return spelled
    processor = tokenizer.spm_target if target else tokenizer.spm_source
    tokens, offsets = _split_text(tokenizer, processor, text)
    ids, count = list(output["input_ids"]), len(tokens)
    added = ids[count:]
    # transformers splits at special tokens before SentencePiece sees the text, so counts differ if there are any.
    if not set(added) <= set(tokenizer.all_special_ids) or len(ids) < count + special:
        raise ExpoundError(f"special tokens stand in the text {text[:40]!r}: leave them out")
    tokens += tokenizer.convert_ids_to_tokens(added)
    offsets += [(0, 0)] * len(added)
    return SplitEncoding(ids, tokens, offsets, [0] * count + [1] * len(added))


def _split_special_tokens(
    tokenizer: Any, text: str, encoding: Encoding, literal: Sequence[tuple[int, int]]
) -> Encoding | SplitEncoding:
    """Return the encoding with special tokens inside `literal` as characters; without any, it is returned unchanged."""
    control = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    kept, is_split = list[int](), False
    for place, (start, end) in enumerate(encoding.offsets):
        if encoding.ids[place] not in control:
            continue
        # A special token may take white space along, also that of a text beside it.
        word = text[start:end].strip()
        begin = start + text[start:end].find(word)
        if word and any(first < begin + len(word) and begin < last for first, last in literal):
            is_split = True
        else:
            kept.append(place)
    if not is_split:
        return encoding
    result = SplitEncoding([], [], [], [])
    plain, cursor = _copy_splitting(tokenizer), 0
    for place in kept:
        start, end = encoding.offsets[place]
        if start == end:
            # Special tokens that the tokenizer adds have no characters: they are around the whole text.
            start = end = 0 if place == len(result.ids) else len(text)
        result.extend(plain.encode(text[cursor:start], add_special_tokens=False), cursor)
        result.append(encoding, place)
        cursor = end
    result.extend(plain.encode(text[cursor:], add_special_tokens=False), cursor)
    return result


def _copy_splitting(tokenizer: Any) -> Tokenizer:
    """Return a copy of a fast tokenizer that encodes special tokens as characters."""
    # A copy, since the option is a state of the tokenizer, which other threads may be using.
    if tokenizer not in _copies:
        copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = True
        _copies[tokenizer] = copy
    return _copies[tokenizer]


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
