"""What the page takes: ``python web/measure.py`` prints the tables of docs/performance.md, "The page".

It needs the built page, Chromium and selenium. Times are medians, and those of the machine as it is.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from steerers.cli import web
from web.browser import Browser, served

TURN = """async (page, angle) => {
  const before = page.turns, start = performance.now();
  page.turnTo(angle);
  while (page.turns === before) await new Promise((resolve) => setTimeout(resolve, 1));
  return [page.session.match.ms, performance.now() - start, page.session.match.scores.length];
}"""
AGAIN = """async (page, angle) => {
  page.settings = { ...page.settings, turn: angle };
  const { msNetwork, ms } = await page.session.matchAgain(page.settings);
  return msNetwork + ms;
}"""
SPIN = """async (page) => {
  const before = page.turns, start = performance.now();
  document.querySelector('#spin').click();
  await new Promise((resolve) => setTimeout(resolve, 4000));
  document.querySelector('#spin').click();
  return 1000 * (page.turns - before) / (performance.now() - start);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    arguments = parser.parse_args()
    asked: set[str] = set()

    def note(self: web.Handler, format: str, *values: Any) -> None:
        asked.add(str(values[0]).split()[1] if values else "")

    web.Handler.log_message = note  # type: ignore[method-assign]
    with served() as url, tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            arrive(browser, url, asked)
            turn(browser, arguments.turns)
        finally:
            browser.close()


def arrive(browser: Browser, url: str, asked: set[str]) -> None:
    """Seconds to the first matches, and bytes."""
    seconds = []
    for _ in range(3):
        browser.open(url)
        seconds.append(browser.ask("(page) => page.firstMatch") / 1000)
    machine, pixels = browser.ask("({session, settings}) => [session.machine, settings.side]")
    files = {web.PAGE / (path.lstrip("/") or "index.html") for path in asked}
    print(f"{machine['backend']}, {machine['threads']} threads, photographs of {pixels} pixels")
    print(f"first matches after {statistics.median(seconds):.1f} s (the first time {seconds[0]:.1f} s)")
    total = compressed = 0
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        small = len(gzip.compress(content))
        total, compressed = total + len(content), compressed + small
        print(f"  {path.relative_to(web.PAGE)}: {len(content) / 1e6:.2f} MB, compressed {small / 1e6:.2f} MB")
    print(f"loaded {total / 1e6:.1f} MB, compressed {compressed / 1e6:.1f} MB")


def turn(browser: Browser, turns: int) -> None:
    """Milliseconds a turn, and to describe again."""
    print("| keypoints | matches | ms a turn | least | until told | spinning, turns a second | described again |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for keypoints in (500, 1000, 2000):
        browser.change({"keypoints": keypoints})
        own, told, matches = zip(*(browser.ask(TURN, 7.3 * k) for k in range(turns)), strict=True)
        again = statistics.median(browser.ask(AGAIN, angle) for angle in (30, 77, 140))
        times = " | ".join(f"{value:.0f}" for value in (statistics.median(own), min(own), statistics.median(told)))
        spun = browser.ask(SPIN)
        print(f"| {keypoints} | {statistics.median(matches):.0f} | {times} | {spun:.0f} | {again:.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
