"""Which photographs are similar, however they are rotated: a vector for each, made of what no rotation changes.

A steerer says how a rotation acts on descriptions, so it also says what it leaves alone
(:meth:`steerers.steering.irreps.Irreps.invariants`). Of that a VLAD is made: descriptions are dealt to the nearest of a
few words, and what they differ from their word by is added up. Words, and the main axes that the invariants are reduced
to, are learnt from the collection itself, from some descriptions of some of its photographs; nothing is trained.
Vectors are compared by their cosines, all with all, block by block; of very many photographs FAISS makes a short list
for each first, if it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from steerers._console import progress, tell
from steerers._devices import parse_device
from steerers._parallel import alone, spread_on
from steerers.steering.irreps import Irreps

if TYPE_CHECKING:
    from steerers._files import StrPath
    from steerers.collection.store import Collection, Pair

WORDS = 32
AXES = 128
SAMPLE = 256
"""Photographs from which words are learnt; and so many descriptions of each."""
_ROUNDS = 15  # of k-means
_ROWS, _COLUMNS = 1024, 16384  # photographs that are compared at once
EXACT = 100_000
"""Photographs up to which all are compared with all."""
_LISTED, _PROBES = (
    8,
    32,
)  # candidates for each photograph that is asked for, and cells of FAISS's index in which to look
_LIST_ROWS = 64  # photographs that are compared with their candidates at once


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words and axes, with which descriptions of a photograph become one vector.

    Attributes:
        irreps: of the steerer; without one, descriptions are taken as they are.
        mean: (C,) of the invariants, and ``axes`` (A, C), the main ones.
        words: (W, A).
    """

    irreps: Irreps | None
    mean: Tensor
    axes: Tensor
    words: Tensor

    @classmethod
    def learn(
        cls, samples: Sequence[Tensor], irreps: Irreps | None, *, words: int = WORDS, axes: int = AXES, seed: int = 0
    ) -> Vocabulary:
        """Learn axes by the principal components of descriptions of some photographs, and words by k-means.

        Args:
            samples: (N, D) descriptions of each; at most :data:`SAMPLE` of each are taken, at random.
            seed: of that choice and of the first words; the same seed gives the same words.
        """
        generator = torch.Generator().manual_seed(seed)
        chosen = [part[torch.randperm(len(part), generator=generator)[:SAMPLE].to(part.device)] for part in samples]
        invariants = _invariants(torch.cat(chosen), irreps)  # (M, C)
        mean = invariants.mean(dim=0)
        around = (invariants - mean).double()
        _, vectors = torch.linalg.eigh(around.mT @ around)
        main = vectors[:, -axes:].mT.flip(0).to(invariants)  # (A, C)
        return cls(irreps, mean, main, _k_means((invariants - mean) @ main.mT, words, generator))

    def vector(self, descriptions: Tensor) -> Tensor:
        """(W * A,) of length 1, of (N, D) descriptions; zero if there are none."""
        values = (_invariants(descriptions, self.irreps) - self.mean) @ self.axes.mT  # (N, A)
        nearest = torch.cdist(values, self.words).argmin(dim=1)
        of_word = F.one_hot(nearest, len(self.words)).to(values)  # (N, W)
        sums = of_word.mT @ values - of_word.sum(dim=0)[:, None] * self.words  # (W, A)
        rooted = F.normalize(sums.sign() * sums.abs().sqrt(), dim=1)
        return F.normalize(rooted.flatten(), dim=0)


def _invariants(descriptions: Tensor, irreps: Irreps | None) -> Tensor:
    """(N, C) float32."""
    if irreps is None:
        return F.normalize(descriptions.float(), dim=1)
    return irreps.invariants(descriptions).float()


def _k_means(values: Tensor, words: int, generator: torch.Generator) -> Tensor:
    """(W, A) words of (M, A) values: the first drawn by k-means++, and moved to the means of what is nearest."""
    centres = values[:1]
    for _ in range(min(words, len(values)) - 1):
        apart = torch.cdist(values, centres).amin(dim=1).double().cpu() ** 2
        if float(apart.sum()) == 0:  # there are no more different ones
            break
        drawn = torch.multinomial(apart, 1, generator=generator).to(values.device)
        centres = torch.cat([centres, values[drawn]])
    for _ in range(_ROUNDS):
        nearest = torch.cdist(values, centres).argmin(dim=1)
        of_word = F.one_hot(nearest, len(centres)).to(values)  # (M, W)
        counts = of_word.sum(dim=0)[:, None]
        centres = torch.where(counts > 0, of_word.mT @ values / counts.clamp(min=1), centres)
    return centres


@dataclass(frozen=True, eq=False)
class Similarities:
    """The vectors of photographs, to be compared.

    Attributes:
        names: of the photographs, in an order that means something to whoever asks what is ``beyond`` it.
        vectors: (N, V) float16.
    """

    names: Sequence[str]
    vectors: Tensor

    @classmethod
    def of(
        cls,
        collection: Collection,
        names: Sequence[str],
        *,
        device: str | torch.device = "cpu",
        weights: Sequence[StrPath] = (),
    ) -> Similarities:
        """Those of photographs of a collection; it takes two bytes a number of memory for each, and their features are
        read one after the other."""
        where = parse_device(device)
        steerer = collection.load_pipeline(weights).model.steerer
        if steerer is None:
            model = collection.manifest.extraction.model
            tell(f"{model} has no steerer: photographs are compared by descriptions as they are")
        irreps = None if steerer is None else Irreps.of(steerer)

        def descriptions(some: Sequence[str], what: str) -> Iterator[Tensor]:
            return (collection.features(name).descriptions.to(where) for name in progress(some, what))

        step = max(1, len(names) // SAMPLE)
        sample = list(descriptions(names[::step][:SAMPLE], "learning words"))
        if not sum(map(len, sample)):
            raise ValueError(f"no photograph of {collection.folder} has keypoints to be compared by")
        vocabulary = alone(lambda: Vocabulary.learn(sample, irreps))
        pooled = descriptions(names, "pooling descriptions")
        made: list[Tensor] = []
        while together := list(islice(pooled, 2 * torch.get_num_threads())):
            made += spread_on(where, lambda one: vocabulary.vector(one).half().cpu(), together)
        return cls(names, torch.stack(made).to(where))

    def nearest(self, count: int, beyond: int | None = None) -> list[Pair]:
        """Each photograph with the ``count`` others to which it is most similar; those without keypoints with none.

        Args:
            beyond: only such as are more than so many places away in the order of the names.
        """
        pairs = []
        for start, indices in self._found(count, beyond):
            for row, others in enumerate(indices.tolist()):
                pairs += [(self.names[start + row], self.names[other]) for other in others if other >= 0]
        return pairs

    def _found(self, count: int, beyond: int | None) -> Iterator[tuple[int, Tensor]]:
        """Blocks of photographs: where each begins, and (B, K) the most similar others."""
        index = self._index() if len(self.names) > EXACT else None
        if index is None:
            return ((start, self._best(start, count, beyond)[1]) for start in range(0, len(self.names), _ROWS))
        starts = range(0, len(self.names), _LIST_ROWS)
        return ((start, self._best_listed(index, start, count, beyond)) for start in starts)

    def _index(self) -> Any:
        """FAISS's index of the vectors, in cells around as many means and in one byte a number; ``None`` without it."""
        try:
            import faiss
        except ImportError:
            tell(f"{len(self.names):,} photographs are compared all with all; faster with steerers[faiss]")
            return None
        cells = max(1, min(round(4 * len(self.names) ** 0.5), len(self.names) // 40))
        axes = min(256, self.vectors.shape[1])
        index = faiss.index_factory(self.vectors.shape[1], f"PCA{axes},IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
        step = max(1, len(self.names) // (64 * cells))
        index.train(self.vectors[::step].float().cpu().numpy())
        for part in progress(self.vectors.split(_COLUMNS), "indexing photographs"):
            index.add(part.float().cpu().numpy())
        faiss.extract_index_ivf(index).nprobe = _PROBES
        return index

    def _best_listed(self, index: Any, start: int, count: int, beyond: int | None) -> Tensor:
        """(B, K) the most similar of those that the index lists for a block of photographs; -1 where there are no
        more."""
        rows = self.vectors[start : start + _LIST_ROWS].float()
        asked = _LISTED * count + 2 * (beyond or 0) + 1
        _, listed = index.search(rows.cpu().numpy(), min(asked, len(self.names)))
        others = torch.from_numpy(listed).to(rows.device)  # (B, L), -1 where there are fewer
        vectors = self.vectors[others.clamp(min=0)].float()  # (B, L, V)
        cosines = (vectors @ rows[..., None])[..., 0]
        own = torch.arange(start, start + len(rows), device=rows.device)[:, None]
        blank = (rows == 0).all(dim=1)[:, None] | (vectors == 0).all(dim=2)
        cosines.masked_fill_((others < 0) | blank | ((others - own).abs() <= (beyond or 0)), -torch.inf)
        best, order = cosines.topk(min(count, cosines.shape[1]), dim=1)
        return others.gather(1, order).masked_fill(best == -torch.inf, -1)

    def _best(self, start: int, count: int, beyond: int | None) -> tuple[Tensor, Tensor]:
        """The largest cosines of a block of photographs, and (B, K) whose they are; -1 where there are no more."""
        rows = self.vectors[start : start + _ROWS].float()
        own = torch.arange(start, start + len(rows), device=rows.device)[:, None]
        best, of = rows.new_full((len(rows), 0), 0.0), own.new_zeros((len(rows), 0))
        for first in range(0, len(self.names), _COLUMNS):
            columns = self.vectors[first : first + _COLUMNS].float()
            other = torch.arange(first, first + len(columns), device=rows.device)
            cosines = rows @ columns.mT  # (B, C)
            near = (other - own).abs() <= (beyond or 0)
            blank = (rows == 0).all(dim=1)[:, None] | (columns == 0).all(dim=1)
            cosines.masked_fill_(near | blank, -torch.inf)
            best, of = torch.cat([best, cosines], dim=1), torch.cat([of, other.expand_as(cosines)], dim=1)
            best, order = best.topk(min(count, best.shape[1]), dim=1)
            of = of.gather(1, order)
        return best, of.masked_fill(best == -torch.inf, -1)
