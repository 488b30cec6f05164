"""Matching: similarities made tile by tile, one assignment, and the strategies that users name."""

from steerers.matching.assignment import Assignment, assign
from steerers.matching.strategies import STRATEGIES, Strategy, make_strategy

__all__ = ["STRATEGIES", "Assignment", "Strategy", "assign", "make_strategy"]
