"""Make the picture in the README: `python docs/scripts/picture.py comparison` (needs Debian's chromium)."""

from __future__ import annotations

import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT, COLoRS = 1000, 1080, 256
HIDE_CURVES = "#curves, fieldset { display: none }"
PICTURE = Path(__file__).parents[1] / "pictures" / "report.png"


def take_screenshot(report: Path) -> Image.Image:
    """Return a screenshot of the top of a report, without its curves."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.resolve().as_uri())
        page.add_style_tag(content=HIDE_CURVES)
        png = page.screenshot()
        browser.close()
    return Image.open(BytesIO(png))


if __name__ == "__main__":
    take_screenshot(Path(sys.argv[1]) / "report.html").quantize(COLoRS).save(PICTURE, optimize=True)
