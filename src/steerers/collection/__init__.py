"""Many photographs: their features, pairs and matches in one folder, made step by step and by many processes."""

from steerers.collection.manifest import Extraction, Manifest
from steerers.collection.store import Collection, Count, PairMatches, Photograph

__all__ = ["Collection", "Count", "Extraction", "Manifest", "PairMatches", "Photograph"]
