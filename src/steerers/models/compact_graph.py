"""All of the embedded network's extracting as one module, from which a graph for other runtimes is made."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from steerers.models.compact import CELL, Compact, textured_cells
from steerers.models.sampling import refine, sample_descriptions


class ExtractionGraph(nn.Module):
    """What :meth:`Compact.extract` does, for a batch, with a number of keypoints that does not depend on the images.

    Sizes stay symbols while the graph is made, which rules out some of what the network itself does: remainders, and
    slices by a size.
    """

    def __init__(self, network: Compact, num_keypoints: int) -> None:
        super().__init__()
        self.network, self.num_keypoints = network, num_keypoints

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keypoints (B, K, 2), best first, their scores (B, K) and descriptions (B, K, D) of (B, 3, H, W) images.

        Where an image has fewer than K keypoints, rows of score -1 fill up.
        """
        rows, columns = (torch.arange(n, device=image.device) for n in image.shape[-2:])
        padded = _padded(image, self.network.config.stride)
        logits, *features = self.network.trunk(padded)
        logits = logits[:, 0].index_select(1, rows).index_select(2, columns)  # (B, H, W)
        allowed = textured_cells(_padded(image, CELL)).index_select(1, rows // CELL).index_select(2, columns // CELL)
        pixels, values = self._best(logits, allowed, rows, columns)
        sampling = self.network.sampling
        xy = refine(logits, pixels, sampling.nms_size) if sampling.subpixel else pixels.to(logits.dtype)
        total = logits.logsumexp(dim=2).logsumexp(dim=1, keepdim=True)  # in two steps, which rounds less
        scores = torch.where(values > -torch.inf, (values - total).exp(), -1.0)
        size = (padded.shape[-1], padded.shape[-2])
        sampled = [sample_descriptions(maps, xy, size) for maps in features]
        return xy, scores, self.network.describer(torch.cat(sampled, dim=2))

    def _best(self, logits: Tensor, allowed: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, 2) pixels with the K largest logits after suppression, and those logits, -inf for what fills up."""
        sampling, count = self.network.sampling, self.num_keypoints
        height, width, border = logits.shape[1], logits.shape[2], sampling.border
        allowed = allowed & ((rows >= border) & (rows < height - border))[:, None]
        allowed = allowed & (columns >= border) & (columns < width - border)  # (B, H, W)
        best = F.max_pool2d(logits[:, None], sampling.nms_size, stride=1, padding=sampling.nms_size // 2)[:, 0]
        ranking = torch.where(allowed & (logits == best), logits, -torch.inf).flatten(1)
        values, index = F.pad(ranking, (0, count), value=-torch.inf).topk(count, dim=1)
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1).flatten(0, 1)  # (H W, 2)
        return F.pad(grid, (0, 0, 0, count))[index], values


def _padded(image: Tensor, multiple: int) -> Tensor:
    """Rows and columns repeated at the end up to a multiple."""
    for dim in (2, 3):
        n = image.shape[dim]
        places = torch.arange((n + multiple - 1) // multiple * multiple, device=image.device)
        image = image.index_select(dim, places.clamp(max=n - 1))
    return image
