"""Hypothesis strategies for unusual texts, values and files."""

from __future__ import annotations

from hypothesis import strategies as st

ODD = [
    "\0", "\x1f", "\x7f", "\x85", "\xa0", "\u00ad", "\u0301", "\u200b", "\u200d", "\u202e", "\u2028", "\u3000",
    "\ufeff", "\ufffd", "\uffff", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U000e0041",
    "\U0010ffff", "ß", "ŉ", "ﬁ", "İ", "ẞ", "\u1e9b\u0323", "한", "ᄒ\u1161", "क्षि", "ไม่", "漢字", "ｆｕｌｌ", "العربية",
    "a\u0300\u0301\u0302", "[SEP]", "[CLS]", "[MASK]", "<|end|>", "</s>", "<pad>", "##ing", "{text}", "{}", "%s", "\\",
    '"', "'", ",", "\t", "\r", "\r\n", "\n", "=1+1", "<script>", "&amp;", "--help", "-", "NaN", "null", "1e999",
    "a" * 300, " " * 50, "don't",
]  # fmt: skip
TEXTS = st.lists(
    st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.sampled_from(["a small town", " ", "dull ", "."])),
    max_size=6,
).map("".join)
"""Texts of letters, marks, controls and fragments that mean something to tokenizers, formats or terminals."""
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS, st.sampled_from([0, 1, -1, "", []])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
"""Values of JSON, also NaN and infinities."""
PIECES = [
    b"", b"\0", b"\n", b"\r", b'"', b"\\", b",", b":", b"(", b")", b"[", b"]", b"{", b"}", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\\ud800", b"null", b"NaN", b"-1", b"1e999", b"99999999999999999999999", b"true", b"[]", b"{}",
    b"\t", b" ", b"(" * 3000, b"[" * 3000, b"x" * 5000, b"\xe2\x80\xa8", b"\x1a", b"-1.5", b"0", b"''",
]  # fmt: skip


EDITS = ("cut", "left out", "doubled", "put in", "put in", "put in", "changed")


def edit_bytes(content, chance):
    """The bytes with up to three random edits: cut off, left out, doubled, put in, or one byte changed."""
    for _ in range(chance.randint(1, 3)):
        start = chance.randint(0, len(content))
        end = min(len(content), start + chance.randint(0, 40))
        edit = chance.choice(EDITS)
        if edit == "cut":
            content = content[:start]
        elif edit == "left out":
            content = content[:start] + content[end:]
        elif edit == "doubled":
            content = content[:end] + content[start:]
        elif edit == "put in":
            content = content[:start] + chance.choice(PIECES) + content[chance.choice([start, end]) :]
        else:
            content = content[:start] + bytes([chance.randint(0, 255)]) + content[start + 1 :]
    return content


def bytes_with_edits(content):
    """A strategy for the bytes with edits. It takes a single draw, since draws are what thousands of cases cost."""
    return st.randoms(use_true_random=True).map(lambda chance: edit_bytes(content, chance))


def find_paths(value, path=()):
    """The paths to everything inside a JSON value, itself included."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inside for found in find_paths(each, (*path, key)))]


def replace_value(value, path, new):
    """A copy of the JSON value with `new` at the path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replace_value(value[path[0]], path[1:], new)
    return copy


@st.composite
def with_other_values(draw, value):
    """The JSON value with up to two other values in it."""
    for _ in range(draw(st.integers(1, 2))):
        value = replace_value(value, draw(st.sampled_from(find_paths(value))), draw(VALUES))
    return value
