"""README.md, CONTRIBUTING.md and pages of docs/: every snippet is run; and in all documents every link leads somewhere.

Python blocks run one after the other in one namespace, as a reader would type them; of shell blocks, ``steerers`` is
run in this process and ``make`` is looked up in the Makefile. A line ``<!-- not run: REASON -->`` before a block leaves
it out.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers import EXAMPLES
from steerers.cli import main, make_parser
from steerers.matching.strategies import NAMES

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = EXAMPLES.parent
README = ROOT / "README.md"
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
QUICK_BENCH = [
    "--num",
    "100",
    "--dim",
    "32",
    "--repeats",
    "1",
]  # added to benches; of options given twice the last counts
DOCUMENTS = [README, *sorted({*ROOT.glob("*.md")} - {README}), *sorted(ROOT.glob("*/*.md"))]


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
    joined = source.replace("\\\n", " ")
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in joined.splitlines()]
    return [line for line in words if line]


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


TEXT = README.read_text(encoding="utf-8")
BLOCKS = fenced(TEXT)
SHELL = [block for block in BLOCKS if block.language in ("sh", "bash", "shell", "console") and block.is_run]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the snippets name, so that nothing is written to the real one."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/models.md", "docs/adapters.md"])
def test_python_blocks(
    document: str, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    blocks = [block for block in fenced((ROOT / document).read_text()) if block.language == "python" and block.is_run]
    assert blocks
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile("\n" * block.line + block.source, document, "exec"), namespace)  # lines as in the file
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("block", SHELL, ids=lambda block: f"line-{block.line}")
def test_shell_blocks(block: Block, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    for program, *arguments in command_lines(block.source):
        if program == "make":
            check_make(arguments)
        elif program == "steerers":
            assert main(arguments + (QUICK_BENCH if arguments[0] == "bench" else [])) == 0, arguments
            written = [value for option, value in itertools.pairwise(arguments) if option in ("--out", "--json")]
            assert all((checkout / path).stat().st_size > 0 for path in written)
        else:
            pytest.fail(
                f"{program!r} after line {block.line} is not run; put <!-- not run: REASON --> before the block"
            )


def test_there_are_commands() -> None:
    programs = [(words[0], words[1]) for block in SHELL for words in command_lines(block.source)]
    assert {("make", "demo"), ("make", "test"), ("steerers", "match")} <= set(programs)


def test_every_block_has_a_language() -> None:
    assert all(block.language for block in BLOCKS)


def test_commands_in_the_prose() -> None:
    """What stands in `backticks` and starts with a command is at least a command that exists."""
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(TEXT).replace("\n", " ")):
        program, *arguments = span.split()
        if program == "make":
            check_make(arguments)
        elif program == "steerers" and arguments:
            assert callable(make_parser().parse_args(arguments).run)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text(encoding="utf-8")))
    local = [target.partition("#")[0] for target in targets if not re.match(r"https?://|#|mailto:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_of_the_package_that_are_named_exist(document: Path) -> None:
    """`matching/assignment.py` and the like, from the root of the repository or of the package."""
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|md|sh))\b", document.read_text(encoding="utf-8"))
    roots = (ROOT, ROOT / "src" / "steerers", document.parent)
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_strategy_is_in_the_table() -> None:
    rows = re.findall(r"^\| *`([\w-]+)` *\|", TEXT, re.MULTILINE)
    assert [name for name in rows if name in NAMES] == list(NAMES)


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
    assert prose(SAMPLE).split("\n\n") == ["text", "<!-- not run: needs a camera -->", "\n<!-- not run: -->", ""]
    with pytest.raises(ValueError, match="line 1 is not closed"):
        fenced("```python\n")


def test_check_make() -> None:
    check_make(["demo", "TORCH_INDEX=somewhere"])
    for words in (["no-such"], ["demo", "NO_SUCH=1"]):
        with pytest.raises(AssertionError, match="the Makefile has no"):
            check_make(words)
