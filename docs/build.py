"""The manual as a site: ``python docs/build.py`` (``make docs``) makes it of docs/, with warnings as errors.

The pages are those that are read in the repository. What differs on the site is done here, on a copy: files of the
repository that are pages of the manual too (:data:`PAGES`), and the links to and from them. The site is made by
Zensical, the successor of Material for MkDocs, and loads nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
CONFIGURATION = "zensical.toml"
PAGES = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "configs/README.md": "configs.md",
    "examples/README.md": "examples.md",
    "LICENSE": "licence.txt",
    "examples/LICENSE-kapture.txt": "licence-kapture.txt",
    "examples/collection.slurm": "collection.slurm",
}
"""Files of the repository that stand in the manual, and their names there."""
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A Markdown text with its prose changed and its fenced blocks as they are."""
    parts = FENCED.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def page_of(path: str) -> str | None:
    """The name in the manual of a file, given by its path in the repository; None if it is not there."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix(f"{DOCS}/") if path.startswith(f"{DOCS}/") else None


def relink(text: str, path: str) -> str:
    """The text of the file at ``path`` of the repository, its links as they have to be in the manual."""
    page = page_of(path)
    assert page is not None

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if re.match(r"[a-z]+:", target):
            return f"{target}{anchor}"
        there = page_of(os.path.normpath(PurePosixPath(path).parent / target))
        return (os.path.relpath(there, PurePosixPath(page).parent) if there else target) + anchor

    return outside_code(text, lambda prose: LINK.sub(link, prose))


def stage(folder: Path) -> None:
    """Write the configuration and all pages of the manual to a folder, as the site needs them."""
    shutil.copytree(ROOT / DOCS, folder / DOCS, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(ROOT / CONFIGURATION, folder)
    for source, page in PAGES.items():
        shutil.copy(ROOT / source, folder / DOCS / page)
    paths = [f"{DOCS}/{path.relative_to(ROOT / DOCS).as_posix()}" for path in (ROOT / DOCS).rglob("*.md")]
    for path in [*paths, *(source for source in PAGES if source.endswith(".md"))]:
        text = relink((ROOT / path).read_text(encoding="utf-8"), path)
        (folder / DOCS / str(page_of(path))).write_text(text, encoding="utf-8")


def build(out: Path) -> int:
    """Make the site in the folder ``out``; not 0 after a warning, of Zensical or of griffe, which reads docstrings."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stage(folder)
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / DOCS), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        sys.stderr.write(done.stderr)
        if done.returncode or re.search(r"^griffe: ", done.stderr, re.MULTILINE):
            return done.returncode or 1
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(folder / "site", out)
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the manual as a site.")
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="folder of the site (default: site)")
    return build(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
