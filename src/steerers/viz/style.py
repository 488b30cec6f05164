"""What pictures have in common."""

SUPERSAMPLING = 2
BACKGROUND = (16, 18, 22)
TEXT = (236, 238, 242)
MUTED = (150, 156, 166)
