"""A tokenizer for the generated corpus, built from its words without training or downloads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import ascii_lowercase, digits, punctuation

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from expound.data.generated import pairs, reviews
from expound.data.generated.lexicon import DEGREES, DOMAINS, MARKERS, MARKING

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORD = re.compile(r"(?<![{a-z])[a-z]+")


def generated_tokenizer(words: Iterable[str] | None = None) -> PreTrainedTokenizerFast:
    """Return a lower-casing WordPiece tokenizer; each word of the generated corpus (or of `words`) is one token.

    Other words are spelt with letters, digits and ASCII punctuation; only other characters become [UNK], after accents
    are stripped. Pairs get token types 0 and 1. The vocabulary is the same in every process.
    """
    letters = ascii_lowercase + digits
    pieces = [
        *SPECIALS,
        *punctuation,
        *letters,
        *(f"##{letter}" for letter in letters),
        *(get_vocabulary() if words is None else words),
    ]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(WordPiece(ids, unk_token=SPECIALS[1], max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name.strip('[]').lower()}_token": name for name in SPECIALS},
    )


def get_vocabulary() -> list[str]:
    """Return the words of the generated corpus, of all domains and tasks, sorted."""
    phrases = [*reviews.FRAMES, *pairs.FRAMES, *DEGREES, *MARKERS, MARKING]
    for lexicon in DOMAINS.values():
        phrases += [*lexicon.aspects, *lexicon.strangers, *lexicon.adjectives, *lexicon.verbs, *lexicon.fillers]
        phrases += [*lexicon.things, *lexicon.scenes, *lexicon.places]
        for first, second in lexicon.qualities:
            phrases += [*first, *second]
    words: set[str] = set()
    for phrase in phrases:
        words.update(_WORD.findall(phrase.lower()))
    return sorted(words)
