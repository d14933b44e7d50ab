"""A protocol that would expand too far is refused before it is expanded."""

import resource
import time

import pytest

from expound import ExpoundError
from expound_people.protocol.file import read_protocol
from expound_people.protocol.yaml_lines import DEEPEST, LARGEST, parse_yaml

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n  k{n}: v\n" for n in range(1, 12)
)
BOMBS = {
    "aliases of aliases": LAUGHS,
    "keys of merges": MERGES,
    "a chain of aliases": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 1000)),
    "itself": "a: &a [*a]\n",
    "itself by way of another": "a: &a\n  b: &b\n    c: [*a, *b]\n",
    "depth": "a: " + "[" * 400 + "]" * 400,
    "much more depth": "a: " + "[" * 20_000,
    "depth of mappings": "a: " + "{a: " * 300 + "1" + "}" * 300,
    "values": "a: [" + "1, " * (LARGEST + 1) + "1]",
    "bytes": "a: " + "x" * (1 << 20),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_a_second_and_little_memory(tmp_path, name):
    (tmp_path / "bomb.yaml").write_text(BOMBS[name])
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ExpoundError, match=r"bomb\.yaml") as error:
        read_protocol(tmp_path / "bomb.yaml")
    assert time.process_time() - begun < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert len(str(error.value).replace(str(tmp_path), "")) < 300


def test_the_line_is_told(tmp_path):
    (tmp_path / "bomb.yaml").write_text(LAUGHS)
    with pytest.raises(ExpoundError, match=rf"bomb.yaml:4: .* at most {LARGEST:,} values, {DEEPEST} deep"):
        read_protocol(tmp_path / "bomb.yaml")


def test_aliases_and_merges_of_a_sensible_size_are_what_they_stand_for(tmp_path):
    text = "base: &base {a: 1}\nother: {<<: *base, b: [*base, *base]}\n"
    assert parse_yaml(text, tmp_path / "fine.yaml").value["other"] == {"a": 1, "b": [{"a": 1}, {"a": 1}]}
