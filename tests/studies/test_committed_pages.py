"""Each page of results is what its committed figures say, to the byte, on a machine without data and models."""

from pathlib import Path

import pytest

from exegete.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in (ROOT / "studies" / "pages").glob("*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_made_from_its_committed_figures(page, tmp_path, monkeypatch):
    for variable in ("EXEGETE_DATA", "EXEGETE_BACKBONE"):
        monkeypatch.setenv(variable, str(tmp_path / "absent"))
    pages, store = ROOT / "studies" / "pages", ["--output-dir", str(tmp_path / "runs")]
    assert main(["study", "import", str(pages / f"{page}.parquet"), *store]) == 0
    assert main(["study", "page", str(pages / f"{page}.md"), *store, "--output", str(tmp_path)]) == 0
    assert (tmp_path / f"{page}.md").read_bytes() == (ROOT / "docs" / "results" / f"{page}.md").read_bytes()
