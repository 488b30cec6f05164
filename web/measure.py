"""What the page takes: ``python web/measure.py`` prints the tables of docs/performance.md, "The page".

It needs the built page, Chromium and selenium. Times are medians, and those of the machine as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from steerers.cli import web
from web.browser import Browser, served

TURN = """async (page, angle) => {
  const before = page.turns;
  page.turnTo(angle);
  while (page.turns === before) await new Promise((resolve) => setTimeout(resolve, 1));
  return [page.session.match.ms, page.session.match.scores.length];
}"""
SPIN = """async (page, ms) => {
  const before = page.turns;
  page.spin();
  await new Promise((resolve) => setTimeout(resolve, ms));
  page.spin();
  return (1000 * (page.turns - before)) / ms;
}"""
AGAIN = """async (page, angle) => {
  page.settings = { ...page.settings, turn: angle };
  const { msNetwork, ms } = await page.session.matchAgain(page.settings);
  return msNetwork + ms;
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
    used = worker_ms(browser) / 1000
    print(f"first matches after {statistics.median(seconds):.1f} s, of processors {used:.1f} s")
    total = compressed = 0
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        small = len(gzip.compress(content))
        total, compressed = total + len(content), compressed + small
        print(f"  {path.relative_to(web.PAGE)}: {len(content) / 1e6:.2f} MB, compressed {small / 1e6:.2f} MB")
    print(f"loaded {total / 1e6:.1f} MB, compressed {compressed / 1e6:.1f} MB")


def turn(browser: Browser, turns: int) -> None:
    """Milliseconds a turn and to describe again, and turns a second, drawn, while the photograph spins."""
    print("| keypoints | matches | ms a turn | least | of a processor | described again | of processors | spinning |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for keypoints in (500, 1000, 2000):
        browser.change({"keypoints": keypoints})
        browser.ask(TURN, 5)
        start = worker_ms(browser)
        own, matches = zip(*(browser.ask(TURN, 7.3 * k) for k in range(turns)), strict=True)
        middle = worker_ms(browser)
        again = [browser.ask(AGAIN, angle) for angle in (30, 77, 140)]
        used = (middle - start) / turns, (worker_ms(browser) - middle) / len(again)
        cells = (
            statistics.median(matches),
            statistics.median(own),
            min(own),
            used[0],
            statistics.median(again),
            used[1],
            browser.ask(SPIN, 4000),
        )
        print(f"| {keypoints} | {' | '.join(f'{value:.0f}' for value in cells)} |", flush=True)


def worker_ms(browser: Browser) -> float:
    """Processor time of the page's workers so far: what a turn takes, however busy the machine is (Linux)."""
    below, known = {browser.driver.service.process.pid}, dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            known[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    while more := {pid for pid, parent in known.items() if parent in below} - below:
        below |= more
    ticks = 0
    for pid in below:
        for task in Path(f"/proc/{pid}/task").glob("*/stat"):
            name, _, numbers = task.read_text().partition(") ")
            if "(DedicatedWorker" in name:
                ticks += sum(map(int, numbers.split()[11:13]))
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
