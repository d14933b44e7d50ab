"""Every block of the README runs, in the order in which they stand, in an empty folder."""

from __future__ import annotations

import pytest

from readme_blocks import ROOT, blocks, commands, run, run_command, small_chat_model


def test_the_readme_runs_as_it_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("EXEGETE_SCALE", "0.05")
    small_chat_model(tmp_path / "my-chat-model")
    run(ROOT / "README.md", tmp_path)
    assert (tmp_path / "comparison" / "report.html").is_file()
    assert (tmp_path / "explained.html").is_file()


def test_commands_for_contributors_are_there():
    page = ROOT / "CONTRIBUTING.md"
    found = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
    assert found
    for words in found:
        run_command(words, page.name)


def test_a_block_that_fails_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("a\n```python\nx = 1\n```\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run(tmp_path / "page.md", tmp_path)
    (tmp_path / "page.md").write_text("```sh\nexegete methods --limit no\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:2: exegete methods --limit no"):
        run(tmp_path / "page.md", tmp_path)
