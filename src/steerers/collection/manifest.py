"""What a collection was made with, so that nothing else is mixed into it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steerers._choices import DEFAULT_MODEL, MAX_SIZE, NUM_KEYPOINTS, Exif, Resize
from steerers._files import StrPath, read_json, write_text
from steerers._version import __version__

if TYPE_CHECKING:
    from steerers.pipeline import Pipeline

FORMAT = 1
"""Of the folder; a change of what it means raises it."""
SHARD_SIZE = 1000
"""Photographs of a shard, unless said otherwise."""
NUMBERS = ("float16", "float32")
"""Types in which descriptions are kept."""


@dataclass(frozen=True)
class Extraction:
    """How features are extracted: what :func:`steerers.load` takes for that, and how descriptions are kept.

    Attributes:
        max_size: ``"default"`` becomes what it stands for.
        descriptions: ``"float16"``, or ``"float32"`` in twice the room.
    """

    model: str = DEFAULT_MODEL
    detector: str | None = None
    num_keypoints: int = NUM_KEYPOINTS
    max_size: int | Literal["default"] | None = "default"
    resize: Resize = "fit"
    exif: Exif = "ignore"
    tile: int | None = None
    precision: str = "float32"
    descriptions: str = NUMBERS[0]

    def __post_init__(self) -> None:
        if self.descriptions not in NUMBERS:
            raise ValueError(f"descriptions must be {' or '.join(NUMBERS)}, got {self.descriptions!r}")
        for name in ("model", "detector"):  # a folder is found from wherever one works
            value = getattr(self, name)
            if value is not None:
                path = os.fspath(value)
                object.__setattr__(self, name, os.path.abspath(path) if os.path.exists(path) else path)
        if self.max_size == "default":
            object.__setattr__(self, "max_size", MAX_SIZE if self.tile is None else None)

    def checksum(self, weights: Sequence[StrPath] = ()) -> str:
        """SHA-256 of the networks as they are in their files, whatever form they run in."""
        from steerers.matching.fingerprints import fingerprint
        from steerers.models import zoo

        return fingerprint(zoo.build(self.model, detector=self.detector, weights=weights).extractor)

    def load(self, weights: Sequence[StrPath] = (), **options: Any) -> Pipeline:
        """The matcher; ``options`` as :func:`steerers.load` takes them for matching, and the device."""
        from steerers.pipeline import load

        told = asdict(self)
        del told["descriptions"]
        return load(told.pop("model"), weights=weights, **told, **options)


@dataclass(frozen=True)
class Manifest:
    """What lies in ``manifest.json``.

    Attributes:
        photos: the folder of the photographs.
        checksum: of the networks, see :meth:`Extraction.checksum`.
        weights: paths that were given for them.
        matching: name and options of the strategy, once pairs were matched.
        version: of steerers, when the collection was begun.
    """

    photos: str
    extraction: Extraction
    checksum: str
    weights: tuple[str, ...] = ()
    shard_size: int = SHARD_SIZE
    matching: dict[str, Any] | None = None
    version: str = __version__

    def __post_init__(self) -> None:
        if not isinstance(self.shard_size, int) or self.shard_size < 1:
            raise ValueError(f"shard_size must be a whole number of at least 1, got {self.shard_size!r}")

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all, if it would change."""
        content = json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            write_text(path, content)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read the file.

        Raises:
            ValueError: naming it, if it is damaged, or of a format that is not known.
        """
        told = read_json(path)
        try:
            version = told.pop("format")
            if version != FORMAT:
                raise ValueError(f"its format is {version!r:.20}, and this version of steerers reads {FORMAT}")
            told["extraction"], told["weights"] = Extraction(**told["extraction"]), tuple(map(str, told["weights"]))
            manifest = cls(**told)
            if not all(isinstance(value, str) for value in (manifest.photos, manifest.checksum, manifest.version)):
                raise TypeError("photos, checksum and version are texts")
            if not isinstance(manifest.matching, dict | None):
                raise TypeError("matching is no table")
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: not the manifest of a collection, or damaged ({error})") from error
        return manifest

    def check_same(self, other: Manifest, folder: Path) -> None:
        """Refuse a second way of extraction in one folder.

        Raises:
            ValueError: saying what differs.
        """
        for option in fields(Extraction):
            here, asked = getattr(self.extraction, option.name), getattr(other.extraction, option.name)
            if here != asked:
                name = option.name.replace("_", "-")
                raise ValueError(f"{folder} was made with {name} {here}, not {asked}: use another folder, or {here}")
        if self.checksum != other.checksum:
            raise ValueError(
                f"{folder} was made with other weights of {self.extraction.model}: use another folder, or those weights"
            )

    def with_matching(self, matching: dict[str, Any], folder: Path) -> Manifest:
        """With a way of matching; a second one is refused.

        Raises:
            ValueError: saying what differs.
        """
        for name, asked in matching.items():
            here = asked if self.matching is None else self.matching.get(name)
            if here != asked:
                raise ValueError(
                    f"{folder} holds matches with {name} {here}, not {asked}: match the same way, or remove "
                    f"{folder / 'matches'} first"
                )
        return replace(self, matching=matching)
