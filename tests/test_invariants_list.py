"""The list of invariants names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_of_the_list_exists():
    named = re.findall(r"\| (\S+\.py)::(\w+) \|", (TESTS / "INVARIANTS.md").read_text("utf-8"))
    assert len(named) > 60
    for file, name in named:
        assert re.search(rf"^(def|class) {name}\b", (TESTS / file).read_text("utf-8"), re.MULTILINE), f"{file}::{name}"
