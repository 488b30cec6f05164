"""The release: wheel and sdist are built, looked into, installed and used.

The wheel is always installed into a fresh environment of this Python, which borrows the heavy packages of the running
one. Those marked ``slow`` (``make test-release``) install it with all that it needs, from the package index, into an
environment of each Python that is here: some minutes, and five gigabytes at a time where PyTorch comes with CUDA.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from helpers import EXAMPLES
from steerers import __version__

ROOT = EXAMPLES.parent
PYTHONS = ("3.11", "3.12", "3.13")
"""That the metadata names."""
LARGEST = 40 << 20
"""Bytes of a file to be released; PyPI takes 100 MB."""
PAGE = "src/steerers/web/"
"""What `make web` puts there is not in git, and goes along if it is there."""
USE = """
import importlib, importlib.util, pathlib, pkgutil, sys
import steerers

assert pathlib.Path(steerers.__file__).is_relative_to(sys.prefix), steerers.__file__
assert "torch" not in sys.modules  # the import alone is light
for name in steerers.__all__:
    assert getattr(steerers, name) is not None, name
assert pathlib.Path(steerers.__file__).with_name("py.typed").is_file()
for module in pkgutil.walk_packages(steerers.__path__, "steerers."):
    if module.name != "steerers.__main__" and (importlib.util.find_spec("triton") or "kernels" not in module.name):
        importlib.import_module(module.name)
print(steerers.__version__)
"""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, the wheel built from the sdist."""
    for package in ("build", "hatchling"):
        pytest.importorskip(package, reason=f"needs {package}, of steerers[dev]")
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def run(command: list[str | Path], cwd: Path | None = None, **variables: str) -> str:
    """What a program prints, that must end well; it sees nothing of this checkout's or this environment's packages."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def in_repository(*patterns: str, new: bool = False) -> set[str]:
    """The files of the checkout below those folders or of those names that git has, or with ``new`` could have."""
    others = ["--others", "--exclude-standard"] if new else []
    listed = run(["git", "ls-files", "--cached", *others, *patterns], ROOT).splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not in a checkout of git")


# What is in them ------------------------------------------------------------------------------------------------------


@needs_git
def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        described = {name.partition(".dist-info/")[2] for name in archive.namelist() if ".dist-info/" in name}
    packaged = {f"src/{name}" for name in names if not f"src/{name}".startswith(PAGE)}
    assert ((ROOT / PAGE / "index.html").is_file()) == ("steerers/web/index.html" in names)
    assert in_repository("src/steerers") <= packaged <= in_repository("src/steerers", new=True)
    assert {"steerers/py.typed", "steerers/models/data/compact-6.safetensors"} <= names
    assert described == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert wheel.name == f"steerers-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < LARGEST


@needs_git
def test_the_sdist_has_what_the_tests_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert in_repository() - {".pre-commit-config.yaml"} <= names
    assert {name for name in names if not name.startswith(PAGE)} - {"PKG-INFO"} <= in_repository(new=True)
    assert sdist.stat().st_size < LARGEST


@pytest.mark.slow
def test_tests_run_from_the_sdist(sdist: Path, tmp_path: Path) -> None:
    """Some that read the documents, the examples and the configurations."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    tests = ["tests/test_architecture.py", "tests/test_files.py", "tests/cli/test_models.py", "tests/test_release.py"]
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    assert " passed" in run(command, folder, PYTHONPATH=str(folder / "src"))


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"steerers-{__version__}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    versions = [line.rpartition(" ")[2] for line in metadata.get_all("Classifier", []) if "Python :: 3." in line]
    assert tuple(versions) == PYTHONS
    assert metadata["Requires-Python"] == f">={PYTHONS[0]}"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(metadata.get_payload()) > 1000  # the README
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_twine_finds_nothing_wrong(wheel: Path, sdist: Path) -> None:
    pytest.importorskip("twine", reason="needs twine, of steerers[dev]")
    assert run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist]).count("PASSED") == 2


# What goes with them --------------------------------------------------------------------------------------------------


def read_yaml(path: Path) -> Any:
    return pytest.importorskip("yaml", reason="needs PyYAML, of steerers[dev]").safe_load(path.read_text("utf-8"))


def test_the_citation_has_the_version_and_the_paper() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == __version__
    assert citation["cff-version"] == "1.2.0"
    paper = citation["preferred-citation"]
    names = " and ".join(author["family-names"] for author in paper["authors"])
    assert (names, paper["year"]) == ("Bökman and Edstedt and Felsberg and Kahl", 2024)


def test_the_changelog_begins_with_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == __version__


def test_the_workflow_runs_what_there_is() -> None:
    """Every Python that the metadata names, and targets of the Makefile."""
    workflow = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")
    assert tuple(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == PYTHONS
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    called = {word for command in commands for word in command.removeprefix("make ").split() if "=" not in word}
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"check", "test", "docs", "test-release", "dist"} <= called <= targets
    local = (ROOT / ".ci" / "run").read_text("utf-8")
    assert set(re.findall(r"^make (\S+)", local, re.MULTILINE)) <= called


# What they do ---------------------------------------------------------------------------------------------------------


def use(environment: Path, folder: Path, pairs: Sequence[str]) -> None:
    """Import everything, and match pairs of the examples by the command, from an installed package."""
    python, program = environment / "bin" / "python", environment / "bin" / "steerers"
    assert run([python, "-c", USE], folder).strip() == __version__
    assert run([program, "--version"], folder) == f"steerers {__version__}\n"
    options = ["--max-size", "480", "--num-keypoints", "500", "--json", folder / "m.json", "--out", folder / "m.png"]
    for pair in pairs:
        said = run([program, "match", EXAMPLES / f"{pair}_0.jpg", EXAMPLES / f"{pair}_1.jpg", *options], folder)
        report = json.loads((folder / "m.json").read_text())
        assert re.match(rf"{report['num_matches']} matches, {report['num_inliers']} inliers, rotated by ", said)
        assert report["model"] == "compact-6"
        assert report["num_inliers"] > 50
        assert (folder / "m.png").stat().st_size > 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="looks for programs in bin/")
def test_an_environment_that_borrows(wheel: Path, tmp_path: Path) -> None:
    """The wheel in a fresh environment, beside this one's packages, of which steerers is none: a path in a ``.pth``
    file does not follow those that it holds, as an editable installation is."""
    import torch

    environment = tmp_path / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", environment])
    run([sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "-q", "--no-deps",
         "--no-index", "--disable-pip-version-check", wheel])  # fmt: skip
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    use(environment, tmp_path, ["board"])


def find_python(version: str) -> Path | None:
    """An interpreter of that version: this one, one of pyenv's, or one on the path."""
    wanted = tuple(map(int, version.split(".")))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    given = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    for python in [Path(sys.executable), *sorted(root.glob(f"versions/{version}.*/bin/python")), *given]:
        code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and tuple(map(int, done.stdout.split())) == wanted:
            return python
    return None


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """A path for an environment, of which nothing stays: pytest would keep it for days."""
    yield tmp_path / "environment"
    shutil.rmtree(tmp_path / "environment", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_a_fresh_environment(version: str, wheel: Path, environment: Path, tmp_path: Path) -> None:
    """As a user installs it, with the versions that ``make`` pins, from TORCH_INDEX too if there is one; but that what
    is not used is not compiled to bytecode, which takes a third of the time."""
    if version not in os.environ.get("RELEASE_PYTHONS", version).split():
        pytest.skip(f"Python {version} is not asked for: RELEASE_PYTHONS={os.environ['RELEASE_PYTHONS']!r}")
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    run([python, "-m", "venv", environment])
    install = [environment / "bin" / "python", "-m", "pip", "install", "-q", "--no-compile"]
    index = os.environ.get("TORCH_INDEX")
    run([*install, "-c", ROOT / "constraints.txt", "torch", *(["--index-url", index] if index else [])])
    run([*install, "-c", ROOT / "constraints.txt", wheel])
    run([environment / "bin" / "python", "-m", "pip", "check"])
    use(environment, tmp_path, ["board", "maupertuis"])
