"""Draw the packages of the library, from the imports in the code and the order of layers in pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "expound"
BOX, GAP, LEFT, WIDE = 44, 18, 20, 230


def list_rooms() -> list[str]:
    """Return the packages from the top layer to the bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [layer.split(".")[1] for layer in layers]


def count_imports() -> Counter[tuple[str, str]]:
    """Count the import statements between each pair of packages."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        counts.update((room, other) for other in _imported_rooms(file) if other != room)
    return counts


def _imported_rooms(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("expound."):
            yield node.module.split(".")[1]


def draw_rooms() -> str:
    """Return the SVG: a box per package and an arc per imported package, wider for more imports."""
    order, lines = list_rooms(), []
    middle = {room: GAP + (BOX + GAP) * row + BOX / 2 for row, room in enumerate(order)}
    for (above, below), count in sorted(count_imports().items(), key=lambda each: -each[1]):
        if above in middle and below in middle:
            lines.append(_arc(middle[above], middle[below], count, f"{above} → {below}: {count} imports"))
    for room, y in middle.items():
        lines.append(f'<rect x="{LEFT}" y="{y - BOX / 2}" width="{WIDE}" height="{BOX}" rx="6" class="room"/>')
        lines.append(f'<text x="{LEFT + 14}" y="{y + 5}">{room}<tspan class="size"> {_size(room)}</tspan></text>')
    height = GAP + (BOX + GAP) * len(order)
    style = (
        ".room{fill:#e6f2f1;stroke:#00796b}text{font:15px sans-serif;fill:#1a2b2a}.size{fill:#5a6b6a;font-size:12px}"
        "path{fill:none;stroke:#00796b;opacity:.45}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" role="img" '
        f'aria-label="Rooms from top to bottom, and what each imports"><style>{style}</style>{"".join(lines)}</svg>\n'
    )


def _arc(top: float, bottom: float, count: int, title: str) -> str:
    x, reach = LEFT + WIDE, LEFT + WIDE + 40 + abs(bottom - top) * 0.5
    width = min(6.0, 0.6 + count**0.5 / 3)
    curve = f"M{x} {top} C{reach} {top} {reach} {bottom} {x} {bottom}"
    return f'<path d="{curve}" stroke-width="{width:.1f}"><title>{title}</title></path>'


def _size(room: str) -> str:
    files = [*SOURCE.glob(f"{room}.py"), *(SOURCE / room).rglob("*.py")]
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{len(files)} files, {lines:,} lines"
