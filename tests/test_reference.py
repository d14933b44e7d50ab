"""Every public name stands on a page of the reference, with a text and an example. `make docs` runs the examples."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from readme_blocks import ROOT


@pytest.fixture(scope="module")
def blocks():
    """The script that runs the reference's examples."""
    found = importlib.util.spec_from_file_location("reference_blocks", ROOT / "docs" / "scripts" / "blocks.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_public_name_has_an_example(blocks):
    assert list(blocks.missing()) == []


def test_what_is_missing_is_told(blocks, tmp_path):
    shutil.copytree(blocks.REFERENCE, tmp_path, dirs_exist_ok=True)
    page = tmp_path / "04_explainers.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("::: exegete.explainers.methods\n", "::: exegete.explainers.old\n"), encoding="utf-8")
    (tmp_path / "10_web.md").unlink()
    last = tmp_path / "09_testing.md"
    last.write_text(last.read_text(encoding="utf-8").rpartition("```python")[0], encoding="utf-8")
    found = list(blocks.missing(tmp_path))
    assert "exegete.explainers.methods is public and on no page" in found
    assert "exegete.explainers.old is on a page and not public" in found
    assert "exegete.web.create_app is public and on no page" in found
    assert "exegete.testing.PreservingContract has no example" in found
