"""What can be trained, as modules from a batch of pairs to the terms of a loss.

- :class:`DescriptorObjective`: the paper's objective over keypoints of a frozen detector, in Settings A, B and C.
- :class:`DetectorObjective`: rotation-consistent keypoints without a descriptor.
- :class:`JointObjective`: keypoints and descriptions of one network, for the embedded model.
"""

from steerers.training.objectives.descriptions import DescriptorObjective, MatchingOptions, Setting
from steerers.training.objectives.joint import JointObjective
from steerers.training.objectives.keypoints import DetectorObjective, KeypointOptions
from steerers.training.objectives.terms import Objective, Terms

__all__ = [
    "DescriptorObjective",
    "DetectorObjective",
    "JointObjective",
    "KeypointOptions",
    "MatchingOptions",
    "Objective",
    "Setting",
    "Terms",
]
