"""Pictures of the page for the manual: ``python web/pictures.py`` makes docs/assets/page.webp and page-turning.webp.

It needs the built page, Chromium and selenium.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

import PIL.Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from web.browser import Browser, served

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT, SMALL = 1280, 800, 800
STEP = 10
TURN = """async (page, angle) => {
  const before = page.turns;
  page.turnTo(angle);
  while (page.turns === before) await new Promise((resolve) => setTimeout(resolve, 5));
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "assets", help="folder (default: docs/assets)")
    out: Path = parser.parse_args().out
    with served() as url, tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.open(url)
            frames = [shot(browser, angle) for angle in (*range(0, 181, STEP), *range(-180 + STEP, 0, STEP))]
            browser.ask("(page) => page.lookAt({ side: 1, index: page.session.match.second[3] })")
            browser.change({"again": True, "turn": 70})
            browser.wait_for(lambda: browser.text("matches-again").isdigit())
            shot(browser).save(out / "page.webp", quality=80, method=6)
        finally:
            browser.close()
    small = [frame.resize((SMALL, SMALL * HEIGHT // WIDTH), PIL.Image.Resampling.LANCZOS) for frame in frames]
    small[0].save(
        out / "page-turning.webp", save_all=True, append_images=small[1:], duration=120, loop=0, quality=45, method=6
    )


def shot(browser: Browser, angle: int | None = None) -> PIL.Image.Image:
    """The page as it is, or with the second photograph turned."""
    if angle is not None:
        browser.ask(TURN, angle)
    return PIL.Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")


if __name__ == "__main__":
    main()
