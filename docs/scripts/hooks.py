"""What MkDocs is told: pages that are made of the code, where they stand, and that a broken link is an error."""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import drawing
import links
import llms
import notebooks
import parts
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import commands

ROOT = Path(__file__).parents[2]
MADE = ROOT / ".docs"
PLUGIN = ROOT / "examples" / "plugin"
REPOSITORY = {
    "CONTRIBUTING.md": "contribute/contributing.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "CODE_OF_CONDUCT.md": "contribute/conduct.md",
    "SECURITY.md": "contribute/security.md",
    "studies/README.md": "studies/index.md",
    "examples/plugin/README.md": "contribute/plugin.md",
    "examples/plugin": "contribute/plugin.md",
    "docs/results": "results/index.md",
}
"""Files of the repository that are pages, too."""


ROOMS = "![The rooms from top to bottom, and what each imports](pictures/rooms.svg)"


def generated() -> Iterator[tuple[str, str]]:
    """Every page and file that is made here, as its path in the site and its text."""
    kept = MADE / "pictures.json"
    yield from parts.pages(json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {})
    yield from commands.pages()
    yield "pictures/rooms.svg", drawing.drawing()
    for made in sorted((MADE / "gallery").glob("*.html")):
        yield f"gallery/{made.name}", made.read_text(encoding="utf-8")
    for file in notebooks.tutorials():
        yield f"tutorials/{file.stem}.md", notebooks.page(file, MADE)
        yield f"tutorials/{file.stem}.ipynb", json.dumps(notebooks.notebook(file))
    for name, path in REPOSITORY.items():
        if (ROOT / name).is_file():
            text = relinked((ROOT / name).read_text(encoding="utf-8"), name, path)
            yield path, text + _sources(PLUGIN) if path == "contribute/plugin.md" else text
    for study in sorted((ROOT / "studies").glob("*.yaml")):
        yield f"studies/{study.name}", study.read_text(encoding="utf-8")
    for figures in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        yield f"benchmarks/results/{figures.name}", figures.read_text(encoding="utf-8")
    yield "results/index.md", _results()


def relinked(text: str, name: str, path: str) -> str:
    """The text of a file of the repository with its links as the site has them."""

    def moved(found: re.Match[str]) -> str:
        target, anchor = found[2], found[3] or ""
        if "://" in target:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        site = REPOSITORY.get(there) or there.removeprefix("docs/")
        return f"{found[1]}({posixpath.relpath(site, posixpath.dirname(path) or '.')}{anchor})"

    return re.sub(r"(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)", moved, text)


def _sources(folder: Path) -> str:
    """The files of a package, each under its name."""
    files = [folder / "pyproject.toml", *sorted(folder.glob("src/*/[a-z]*.py")), *sorted(folder.glob("tests/*.py"))]
    kinds = {".toml": "toml", ".py": "python"}
    block = "\n## {}\n\n```{}\n{}```\n"
    return "".join(block.format(file.name, kinds[file.suffix], file.read_text(encoding="utf-8")) for file in files)


def _results() -> str:
    lines = ["# What came out", "The papers' tables at a scale that this project could afford, and what differs."]
    files = sorted((ROOT / "docs" / "results").glob("*.md"))
    rows = [f"- [{file.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}]({file.name})" for file in files]
    return "\n\n".join([*lines, "\n".join(rows)]) + "\n"


def on_config(config: Any) -> Any:
    """The navigation: hand-written pages and, in the order of their registries, those that are made here."""
    pages = [path for path, _ in generated() if path.endswith(".md")]

    def under(folder: str) -> list[str]:
        return [page for page in pages if page.startswith(f"{folder}/")]

    reference = sorted(str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs" / "reference").glob("*.md"))
    results = [f"results/{file.name}" for file in sorted((ROOT / "docs" / "results").glob("*.md"))]
    config.nav = [
        {"Start": ["index.md", "report.md", "data.md"]},
        {"Choose": ["choose.md", "limits.md", "precision.md", "reliability.md"]},
        {"Tutorials": under("tutorials")},
        {"Parts": [{kind.title: under(kind.folder)} for kind in parts.KINDS]},
        {"Papers": ["papers.md", *under("studies"), {"Results": ["results/index.md", *results]}]},
        {"Gallery": ["gallery.md"]},
        {"Reference": [*reference, {"Command line": sorted(under("cli"))}]},
        {"Contribute": [*under("contribute"), "architecture.md"]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds what is made."""
    for path, text in generated():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links of hand-written pages to files outside of docs/ lead to their pages."""
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_uri == "architecture.md":
        markdown = markdown.replace("## Rooms\n", f"## Rooms\n{ROOMS}\n\n", 1)
    return relinked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Writes llms.txt and checks all links of the site. Raises PluginError where one is broken."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(llms.text(ROOT, site, config.nav), encoding="utf-8")
    if found := sorted(set(links.broken(site))):
        raise PluginError("broken links:\n" + "\n".join(found))
