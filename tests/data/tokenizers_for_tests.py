"""Small tokenizers of common families, trained on sentences of this file."""

from functools import cache

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The harbour was quiet, and nobody sold any lemons that morning.",
    "A naïve café owner über-baked the soufflé; it wasn't good at all!",
    "Two grey cats and 17 hens slept under my neighbor's blue tractor.",
    "日本語の文章です。 ภาษาไทย is unspaced, עברית runs the other way.",
    "Emoji 😀 👍🏽 and flags 🇩🇪 are longer than they look.",
]
ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]


def _bert_like(tokenizer):
    ids = {name: tokenizer.token_to_id(name) for name in ("[SEP]", "[CLS]")}
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return tokenizer


@cache
def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=160, special_tokens=specials))
    return _bert_like(tokenizer)


@cache
def byte_level(trim=True, prefix=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=ROBERTA_SPECIALS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.token_to_id("</s>")),
        ("<s>", tokenizer.token_to_id("<s>")),
        trim_offsets=trim,
        add_prefix_space=prefix,
    )
    return tokenizer


@cache
def llama_like():
    tokenizer = Tokenizer(models.BPE())
    pattern = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    begin = "<|begin_of_text|>"
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[begin], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    template = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


@cache
def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=ROBERTA_SPECIALS, unk_token="<unk>")
    tokenizer.train_from_iterator(SENTENCES, trainer)
    specials = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=specials
    )
    return tokenizer


FAMILIES = {
    "wordpiece": wordpiece,
    "byte_level": byte_level,
    "byte_level_untrimmed": lambda: byte_level(trim=False),
    "byte_level_prefix": lambda: byte_level(prefix=True),
    "llama_like": llama_like,
    "unigram": unigram,
}
