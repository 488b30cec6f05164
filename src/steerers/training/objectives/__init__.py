"""What can be trained, as modules from a batch of pairs to the terms of a loss (:mod:`.base`).

- :mod:`.descriptions`: the paper's objective over keypoints of a frozen detector, in Settings A, B and C.
- :mod:`.keypoints`: rotation-consistent keypoints without a descriptor.
- :mod:`.joint`: keypoints and descriptions of one network, for the embedded model.
- :mod:`.losses`: what they minimise, as functions of tensors.
"""
