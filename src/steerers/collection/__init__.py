"""Many photographs: their features, pairs and matches in one folder, made step by step and by many processes."""

from steerers.collection.extraction import extract, extract_to_file
from steerers.collection.manifest import Extraction, Manifest
from steerers.collection.matching import match_pairs
from steerers.collection.pairing import Choice, choose_pairs
from steerers.collection.store import Collection, Count, PairMatches, Photograph
from steerers.collection.work import Share

__all__ = [
    "Choice",
    "Collection",
    "Count",
    "Extraction",
    "Manifest",
    "PairMatches",
    "Photograph",
    "Share",
    "choose_pairs",
    "extract",
    "extract_to_file",
    "match_pairs",
]
