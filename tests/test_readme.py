"""The README and the manual: every snippet is run, every link leads somewhere, and the site is made without a warning.

Blocks of a page run one after the other, as a reader would type them: Python in one namespace, ``steerers`` in this
process, ``make`` is looked up in the Makefile, and TOML is written to the file that its first line names. A line ``<!--
not run: REASON -->`` before a block leaves it out; its commands must exist all the same.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

import steerers
from helpers import EXAMPLES
from steerers.cli import main, make_parser
from steerers.images import decode
from steerers.matching.strategies import NAMES

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = EXAMPLES.parent
README = ROOT / "README.md"
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
SHELL = ("sh", "bash", "shell", "console")
QUICK = {
    "align": ["--max-size", "512", "--num-keypoints", "800"],
    "bench": ["--num", "100", "--dim", "32", "--repeats", "1"],
    "extract": ["--model", "upright-sift", "--num-keypoints", "256"],
    "figure": ["--max-size", "256"],
    "reconstruct": ["--max-size", "400", "--num-keypoints", "700"],
    "match": ["--max-size", "512", "--num-keypoints", "512"],
}
"""Options that are added to commands, since time is short; of options given twice the last counts."""
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/*.md"), *(ROOT / "docs").rglob("*.md")})
DATA = ("csv",)  # languages of blocks that only show what a file looks like
RECORDS = ("docs/results.md", "docs/performance.md", "docs/paper.md")
"""Their blocks without a language are what was run, with output and all."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block: its language, its text, the line of its fence (from 1), and whether it is to be run."""

    language: str
    source: str
    line: int
    is_run: bool


def fenced(text: str) -> list[Block]:
    """Every fenced block of a Markdown text."""
    found, lines = [], iter(enumerate(text.splitlines(), start=1))
    previous = ""
    for number, line in lines:
        if line.startswith("```"):
            body = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner)
            else:
                raise ValueError(f"the block of line {number} is not closed")
            language = line.removeprefix("```").split(maxsplit=1)[0] if line != "```" else ""
            found.append(Block(language, "\n".join(body) + "\n", number, not NOT_RUN.fullmatch(previous)))
        if line.strip():
            previous = line.strip()
    return found


def command_lines(source: str) -> list[list[str]]:
    """The words of each command of a shell block, without prompts and comments."""
    found: list[list[str]] = []
    waiting = ""
    for line in source.replace("\\\n", "").splitlines():
        waiting += line.removeprefix("$ ")
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        waiting = ""
        found += [words] if words else []
    assert not waiting, f"a quotation does not end: {waiting}"
    return found


def unwrapped(source: str) -> str:
    """The commands of a record, without output; they go on in lines that are indented, and [options] were tried both
    ways."""
    joined = re.sub(r"\n +", " ", re.sub(r",\n +", ",", source.replace("\\\n", "")))
    commands = [line for line in joined.splitlines() if line.startswith(("steerers ", "make "))]
    return re.sub(r"[][]", "", "\n".join(commands))


def prose(text: str) -> str:
    """A Markdown text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_make(words: list[str]) -> None:
    """Targets exist, and variables are ones that the Makefile uses."""
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable:
            assert f"$({name})" in (ROOT / "Makefile").read_text(), f"the Makefile has no variable {name}"
        else:
            assert name in make_targets(), f"the Makefile has no target {name!r}"


def slugs(text: str) -> set[str]:
    """The anchors of a Markdown text's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-{sum(other.startswith(slug) for other in found)}")
    return found


# Snippets -------------------------------------------------------------------------------------------------------------

BLOCKS = {path: fenced(path.read_text(encoding="utf-8")) for path in DOCUMENTS}
RUN = [path for path, blocks in BLOCKS.items() if any(block.is_run and block.language for block in blocks)]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that snippets are run in, with what they name, so that nothing is written to the real one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "docs" / "tutorials", tmp_path / "docs" / "tutorials")
    for folder in ("configs", "src"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decode, "MAX_PIXELS", decode.MAX_PIXELS)  # which SECURITY.md lowers
    return tmp_path


def run_command(words: list[str], folder: Path) -> None:
    """Run ``steerers``, look up ``make``; nothing else can be run."""
    program, *arguments = words
    if program == "make":
        check_make(arguments)
    elif program == "steerers":
        assert main(arguments + QUICK.get(arguments[0], [])) == 0, arguments
        written = [value for option, value in itertools.pairwise(arguments) if option in ("--out", "--json")]
        assert all((folder / path).stat().st_size > 0 for path in written if "--dry-run" not in arguments)
    else:
        pytest.fail(f"{program!r} is not run; put <!-- not run: REASON --> before the block")


@pytest.mark.parametrize("document", RUN, ids=name_of)
def test_snippets(document: Path, checkout: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in BLOCKS[document]:
        if not block.is_run:
            continue
        if block.language == "python":
            exec(compile("\n" * block.line + block.source, document, "exec"), namespace)  # lines as in the file
        elif block.language in SHELL:
            for words in command_lines(block.source):
                run_command(words, checkout)
        elif block.language == "toml":
            tomllib.loads(block.source)
            (checkout / block.source.partition("\n")[0].removeprefix("# ")).write_text(block.source)
        else:
            assert block.language in ("", *DATA), (
                f"{name_of(document)}: what to do with {block.language!r} of line {block.line}?"
            )


@pytest.mark.parametrize("document", [path for path in BLOCKS if BLOCKS[path]], ids=name_of)
def test_commands_that_are_not_run(document: Path) -> None:
    """They exist, with their options."""
    for block in BLOCKS[document]:
        if block.is_run and block.language:
            continue
        if not block.language:
            assert name_of(document) in RECORDS, f"the block of line {block.line} needs a language"
        for program, *arguments in command_lines(unwrapped(block.source)) if block.language != "python" else []:
            if program == "make":
                check_make(arguments)
            elif program == "steerers":
                assert callable(make_parser().parse_args(arguments).run)


def test_there_are_commands() -> None:
    shell = [block for block in BLOCKS[README] if block.language in SHELL and block.is_run]
    programs = [(words[0], words[1]) for block in shell for words in command_lines(block.source)]
    assert {("make", "demo"), ("make", "test"), ("steerers", "match")} <= set(programs)
    assert len(RUN) >= 12


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_in_the_prose(document: Path) -> None:
    """What stands in `backticks` and starts with a command is at least a command that exists."""
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(document.read_text(encoding="utf-8")).replace("\n", " ")):
        program, *arguments = span.split() or [""]
        if program == "make":
            check_make(arguments)
        elif program == "steerers" and arguments and not set(arguments) & {"...", "[", "|"}:
            check_prose(arguments)


def check_prose(arguments: list[str]) -> None:
    """A command of the prose exists; what it needs may be left out, or stand there in capitals."""
    known = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert arguments[0] in {*known, "--help", "--version"}, f"there is no command steerers {arguments[0]}"


# Links ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links(document: Path) -> None:
    """Of pages, pictures and anchors."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text(encoding="utf-8"))):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = document if not path else document.parent / path
        if not file.exists() or (anchor and anchor not in slugs(file.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_of_the_package_that_are_named_exist(document: Path) -> None:
    """`matching/assignment.py` and the like, from the root of the repository or of the package."""
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|md|sh))\b", document.read_text(encoding="utf-8"))
    roots = (ROOT, ROOT / "src" / "steerers", document.parent)
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_strategy_is_in_the_table() -> None:
    text = (ROOT / "docs" / "matching.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| *`([\w-]+)` *\|", text, re.MULTILINE)
    assert [name for name in rows if name in NAMES] == list(NAMES)


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    names = [name for name in steerers.__all__ if name != "__version__"]
    assert [name for name in names if f"steerers.{name}" not in shown] == []


def test_pictures_are_small_and_used() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (*DOCUMENTS, ROOT / "zensical.toml"))
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".jpg", ".png", ".gif", ".svg")]
    assert [path.name for path in pictures if path.name not in text] == []
    assert [path.name for path in pictures if path.stat().st_size > 450_000] == []


# The site -------------------------------------------------------------------------------------------------------------


def docs_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_relink() -> None:
    relink = docs_module("build").relink
    text = "[a](docs/models.md#compact) [b](SECURITY.md) [c](https://x.org/docs/a.md) ![d](docs/assets/a.png) [e](#f)\n"
    assert relink(text, "CHANGELOG.md") == (
        "[a](models.md#compact) [b](security.md) [c](https://x.org/docs/a.md) ![d](assets/a.png) [e](#f)\n"
    )
    assert relink("[a](../../examples/README.md) [b](../models.md)", "docs/api/index.md") == (
        "[a](../examples.md) [b](../models.md)"
    )
    code = "```sh\nx [a](CONTRIBUTING.md)\n```\n"
    assert relink(code, "SECURITY.md") == code
    assert relink("[a](README.md) [b](LICENSE)", "examples/README.md") == "[a](examples.md) [b](LICENSE)"


RETURNED = re.compile(r"Returns:</span></p>\s*<ul>\s*<li [^>]*>(.*?)\u2013", re.DOTALL)


class Page(HTMLParser):
    """What a page of the site loads, what it links to, and its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a":
            self.links += [values["href"]] if "href" in values else []
        else:
            self.loads += [values[name] for name in ("src", "href") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("zensical", "mkdocstrings_handlers.python"):
        pytest.importorskip(needed, reason="the manual needs steerers[docs]")
    folder = tmp_path_factory.mktemp("site") / "site"
    assert docs_module("build").build(folder) == 0, "Zensical has warnings: run make docs"
    return folder


def test_site_has_every_page(site: Path) -> None:
    build = docs_module("build")
    names = [name_of(path) for path in DOCUMENTS if path != README]
    pages = [build.page_of(name) for name in names]
    assert [name for name, page in zip(names, pages, strict=True) if page is None] == []
    assert [page for page in pages if not (site / str(page)).with_suffix(".html").exists()] == []
    configuration = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert [page for page in pages if f'"{page}"' not in configuration] == []  # of the navigation


def test_site_is_whole_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    elsewhere, broken = [], []
    for path, page in pages.items():
        elsewhere += [(path.name, target) for target in page.loads if re.match(r"(https?:)?//", target)]
        for target in (*page.links, *page.loads):
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue
            file = (path.parent / unquote(link.path)).resolve() if link.path else path
            known = file in pages and (not link.fragment or unquote(link.fragment) in pages[file].ids)
            if not (file.exists() and (known or file not in pages)):
                broken.append((path.name, target))
    assert elsewhere == []
    assert broken == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?:|@import", styles)


def test_site_has_no_markdown_left(site: Path) -> None:
    """Lists and tables that Markdown took for text, and Sphinx's roles, of which there are links."""
    left = re.compile(
        r"<p>(?:- |\* |\d+\. |\| )|^(?:- |\| ).*$(?=[^<]*</p>)|:(?:class|func|meth|attr|data|mod):`|&lt;autoref",
        re.MULTILINE,
    )
    found = {path.name: left.findall(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert {name: spans for name, spans in found.items() if spans} == {}
    returned = [span for path in (site / "api").glob("*.html") for span in RETURNED.findall(path.read_text("utf-8"))]
    assert len(returned) > 10
    assert [
        span for span in returned if "``" in span
    ] == []  # a colon in the first line, before which griffe sees a type
    api = (site / "api" / "matching.html").read_text(encoding="utf-8")
    assert "stored pixels of image 0" in api  # a field's comment
    assert "the model that made the descriptions" in api  # behind a string
    assert 'id="steerers.Pipeline.__call__"' in api
    assert re.search(r'<a [^>]*href="[^"]*#steerers(?:.pipeline)?.load"[^>]*><code>load</code></a>', api)  # a role


# The reader of Markdown itself ----------------------------------------------------------------------------------------

SAMPLE = """text
```python
a = 1
```
<!-- not run: needs a camera -->

```sh
steerers match a.jpg \\
    b.jpg   # a comment
$ make demo
```
<!-- not run: -->
```sh
# nothing
```
"""


def test_fenced() -> None:
    python, skipped, unreasoned = fenced(SAMPLE)
    assert python == Block("python", "a = 1\n", 2, True)
    assert (skipped.language, skipped.line, skipped.is_run) == ("sh", 7, False)
    assert unreasoned.is_run  # a reason must be given
    assert command_lines(skipped.source) == [["steerers", "match", "a.jpg", "b.jpg"], ["make", "demo"]]
    assert command_lines(unreasoned.source) == []
    assert command_lines("a 'b,\n    c'  # d\ne\n") == [["a", "b,    c"], ["e"]]
    assert unwrapped("steerers a b,\n    c\n    d [--e]\nnothing 'else\nmake \\\nf\n") == "steerers a b,c d --e\nmake f"
    with pytest.raises(AssertionError, match="does not end"):
        command_lines("a 'b\n")
    assert prose(SAMPLE).split("\n\n") == ["text", "<!-- not run: needs a camera -->", "\n<!-- not run: -->", ""]
    with pytest.raises(ValueError, match="line 1 is not closed"):
        fenced("```python\n")


def test_check_make() -> None:
    check_make(["demo", "TORCH_INDEX=somewhere"])
    for words in (["no-such"], ["demo", "NO_SUCH=1"]):
        with pytest.raises(AssertionError, match="the Makefile has no"):
            check_make(words)


def test_slugs() -> None:
    assert slugs("# A: b, *c*\n## [Link](x.md) d\n# A: b, *c*\n```\n# code\n```\n") == {"a-b-c", "link-d", "a-b-c-1"}
