"""MkDocs hooks: add the generated pages, build the navigation, and fail on broken links."""

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
import performance
import reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import commands

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / ".docs"
PLUGIN = ROOT / "examples" / "plugin"
PAPERS = ROOT / "papers"
REPOSITORY = {
    "CONTRIBUTING.md": "contribute/contributing.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "CODE_OF_CONDUCT.md": "contribute/conduct.md",
    "SECURITY.md": "contribute/security.md",
    "papers/README.md": "studies/index.md",
    "people/README.md": "people/index.md",
    "examples/plugin/README.md": "contribute/plugin.md",
    "examples/plugin": "contribute/plugin.md",
    "papers/results": "results/index.md",
    "papers/src/expound_papers/studies": "studies/er.md",
}
"""Files of the repository that are also pages of the site."""


ROOMS = "![The rooms from top to bottom, and what each imports](pictures/rooms.svg)"


def generate_pages() -> Iterator[tuple[str, str]]:
    """Yield every generated page and file, as its path in the site and its text."""
    saved = OUTPUT / "pictures.json"
    pictures = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    yield from parts.pages(pictures)
    yield from commands.pages()
    yield from reference.pages()
    yield "performance.md", performance.page()
    yield "pictures/rooms.svg", drawing.draw_rooms()
    for report in sorted((OUTPUT / "gallery").glob("*.html")):
        yield f"gallery/{report.name}", report.read_text(encoding="utf-8")
    for file in notebooks.tutorials():
        yield f"{file.parent.name}/{file.stem}.md", notebooks.page(file, OUTPUT)
        yield f"{file.parent.name}/{file.stem}.ipynb", json.dumps(notebooks.notebook(file))
    for name, path in REPOSITORY.items():
        if (ROOT / name).is_file():
            text = relink((ROOT / name).read_text(encoding="utf-8"), name, path)
            yield path, text + _sources(PLUGIN) if path == "contribute/plugin.md" else text
    for page in sorted((PAPERS / "results").glob("*.md")):
        yield (
            f"results/{page.name}",
            relink(page.read_text(encoding="utf-8"), f"papers/results/{page.name}", f"results/{page.name}"),
        )
    for module in sorted((PAPERS / "src" / "expound_papers" / "studies").glob("[a-z]*.py")):
        yield f"studies/{module.stem}.md", f"# {module.name}\n\n```python\n{module.read_text(encoding='utf-8')}```\n"
    for figures in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        yield f"benchmarks/results/{figures.name}", figures.read_text(encoding="utf-8")


def relink(text: str, name: str, path: str) -> str:
    """Return a repository file's text with its links changed to those of the site."""

    def replace_target(match: re.Match[str]) -> str:
        target, anchor = match[2], match[3] or ""
        if "://" in target:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        site = REPOSITORY.get(file) or file.removeprefix("docs/").removeprefix("papers/")
        return f"{match[1]}({posixpath.relpath(site, posixpath.dirname(path) or '.')}{anchor})"

    return re.sub(r"(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)", replace_target, text)


def _sources(folder: Path) -> str:
    """Return the files of a package as Markdown, each under its name."""
    files = [folder / "pyproject.toml", *sorted(folder.glob("src/*/[a-z]*.py")), *sorted(folder.glob("tests/*.py"))]
    kinds = {".toml": "toml", ".py": "python"}
    block = "\n## {}\n\n```{}\n{}```\n"
    return "".join(block.format(file.name, kinds[file.suffix], file.read_text(encoding="utf-8")) for file in files)


def on_config(config: Any) -> Any:
    """Build the navigation from hand-written and generated pages."""
    pages = [path for path, _ in generate_pages() if path.endswith(".md")]

    def pages_under(folder: str) -> list[str]:
        return [page for page in pages if page.startswith(f"{folder}/")]

    packages = [
        {file.stem.partition("_")[2]: [f"reference/{file.name}", *pages_under(f"reference/{file.stem}")]}
        for file in sorted((ROOT / "docs" / "reference").glob("*.md"))
    ]
    titles = {kind.folder: kind.title for kind in parts.KINDS}
    trained = [{titles[folder]: pages_under(folder)} for folder in ("recipes", "objectives")]
    datasets = {titles["datasets"]: pages_under("datasets")}
    files = sorted((PAPERS / "results").glob("*.md"))
    results = [f"results/{file.name}" for file in files if file.stem != "index"]
    config.nav = [
        {
            "Start": [
                "index.md",
                "report.md",
                "data.md",
                "tasks.md",
                "images.md",
                "functions.md",
                "agents.md",
                "long_prompts.md",
                "serving.md",
                "people/index.md",
                "gallery.md",
            ]
        },
        {"Choose": ["choose.md", "limits.md", "performance.md", "precision.md", "reliability.md"]},
        {"Tutorials": [*pages_under("tutorials"), {"Concepts": pages_under("concepts")}]},
        {"Methods": pages_under("methods")},
        {"Metrics": pages_under("metrics")},
        {"Training": ["your_training.md", "citation_use.md", *trained]},
        {"Papers": [{"Results": ["results/index.md", *results]}, "papers.md", *pages_under("studies")]},
        {"Reference": [*packages, "parameters.md", datasets, {"Command line": sorted(pages_under("cli"))}]},
        {"Contribute": [*pages_under("contribute"), "architecture.md"]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated files."""
    for path, text in generate_pages():
        files.append(File.generated(config, path, content=text))
    for picture in sorted((PAPERS / "pictures").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Change links of hand-written pages to files outside docs/ into links to their pages."""
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_uri.startswith("reference/"):
        markdown = reference.index(ROOT / "docs" / page.file.src_uri)
    if page.file.src_uri == "architecture.md":
        markdown = markdown.replace("## Rooms\n", f"## Rooms\n{ROOMS}\n\n", 1)
    return relink(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Write llms.txt and check all links of the site. Raises PluginError if a link is broken."""
    site = Path(config.site_dir)
    (site / "llms.txt").write_text(llms.text(ROOT, site, config.nav), encoding="utf-8")
    broken = sorted(set(links.find_broken(site)))
    if broken:
        raise PluginError("broken links:\n" + "\n".join(broken))
