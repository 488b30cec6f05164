"""Many photographs: their features, pairs and matches in one folder, made step by step and by many processes."""

from steerers.collection.extraction import extract, extract_to_file
from steerers.collection.manifest import Extraction, Manifest
from steerers.collection.mapping import MappingOptions
from steerers.collection.matching import match_pairs
from steerers.collection.pairing import Choice, choose_pairs
from steerers.collection.reconstruction import (
    ReconstructionOptions,
    Result,
    default_choice,
    reconstruct,
    reconstruct_matched,
)
from steerers.collection.store import Collection, Count, PairMatches, Photograph
from steerers.collection.two_view import VerificationOptions
from steerers.collection.verification import Verified, verify
from steerers.collection.work import Share

__all__ = [
    "Choice",
    "Collection",
    "Count",
    "Extraction",
    "Manifest",
    "MappingOptions",
    "PairMatches",
    "Photograph",
    "ReconstructionOptions",
    "Result",
    "Share",
    "VerificationOptions",
    "Verified",
    "choose_pairs",
    "default_choice",
    "extract",
    "extract_to_file",
    "match_pairs",
    "reconstruct",
    "reconstruct_matched",
    "verify",
]
