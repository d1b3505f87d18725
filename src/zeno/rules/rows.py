"""The rows that a rule makes an update from: the usable candidates, or mixtures of them.

A pre-aggregator such as NNM replaces every candidate by a weighted mean of candidates. It never makes these means:
it returns their weights, an [n, m + 1] matrix over the m candidates and the origin. Distances between mixtures follow
from distances between candidates, and a weighted sum of mixtures is a weighted sum of candidates. So a chain of
rules reads the candidates as often as its last rule does, and needs no memory for what lies between.

Shapes: m workers, n rows, d parameters.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from zeno.rules.linalg import kernels, passes
from zeno.rules.linalg.candidates import Candidates
from zeno.rules.linalg.sorting_network import Columns, evaluate
from zeno.rules.rule import Aggregate, Descent, TooFewUsable


class Rows:
    """n rows of d numbers, all of them finite; read-only."""

    def __init__(
        self,
        candidates: Candidates,
        chosen: Sequence[int] | None = None,
        mix: Tensor | None = None,
        owners: Tensor | None = None,
    ) -> None:
        self.candidates = candidates
        self._chosen = chosen  # which candidates; None: all that are usable
        self._mix = mix  # [n, m + 1], each row sums to 1 with the last column, the origin; None: the chosen candidates
        self._owners = owners  # [n, m] bool
        self._on_trust = False  # all candidates are taken for usable, until the update turns out not to be finite

    @property
    def m(self) -> int:
        """How many candidates there are, usable or not."""
        return len(self.candidates.tensor)

    @property
    def d(self) -> int:
        return self.candidates.tensor.shape[1]

    @property
    def n(self) -> int:
        """How many rows there are."""
        if self._mix is not None:
            return len(self._mix)
        return self.m if self._on_trust else len(self.chosen)

    @property
    def mixed_up(self) -> bool:
        """Whether a row is anything but one candidate as it came."""
        return self._mix is not None

    @property
    def size(self) -> int:
        """How many rows there are, and one for each unusable candidate."""
        plain = self._mix is None and self._chosen is None
        return self.m if plain else self.n + self.num_unusable

    @property
    def num_unusable(self) -> int:
        return 0 if self._on_trust else int((~self.candidates.usable).sum())

    @property
    def chosen(self) -> Sequence[int]:
        """The candidates that the rows are, or are made of."""
        if self._chosen is None:
            self._chosen = self.candidates.usable.nonzero().flatten().tolist()
        return self._chosen

    @cached_property
    def mix(self) -> Tensor:
        """[n, m + 1]: each row as weights of the candidates and of the origin."""
        if self._mix is not None:
            return self._mix
        identity = torch.eye(self.m, self.m + 1, dtype=torch.float64, device=self.candidates.tensor.device)
        return identity[list(self.chosen)]

    @property
    def owners(self) -> Tensor:
        """[n, m] bool: the workers that each row stands for."""
        return self.mix[:, :-1] != 0 if self._owners is None else self._owners

    def only(self, kept: Tensor) -> "Rows":
        """Some of the rows: [n] bool."""
        if self._mix is None:
            return Rows(self.candidates, [i for i, keep in zip(self.chosen, kept.tolist(), strict=True) if keep])
        return Rows(self.candidates, None, self._mix[kept], self.owners[kept])

    def mixed(self, weights: Tensor, owners: Tensor | None = None) -> "Rows":
        """Rows made of these by weights [k, n], the origin having the rest; `owners` [k, n]: whom they stand for."""
        mix = weights @ self.mix
        mix[:, -1] += 1 - mix.sum(dim=1)
        whose = self.owners if owners is None else (owners.double() @ self.owners.double()) > 0
        return Rows(self.candidates, None, mix, whose)

    def lowered(self, rule: object, bear: int) -> int:
        """How many faulty rows are left to bear: every unusable candidate was one of `bear`."""
        if self.num_unusable > bear:
            raise TooFewUsable(rule, self.m - bear, self.candidates.usable)
        return bear - self.num_unusable

    def squared_norms(self) -> Tensor:
        """||row||^2 -> [n] in float64."""
        if self._mix is None:
            return self.candidates.squared_norms[list(self.chosen)]
        from_origin = self._mix.clone()
        from_origin[:, -1] = -from_origin[:, :-1].sum(dim=1)  # not 1 less: a weight of 1e-20 would be lost
        return ((from_origin @ self.candidates.products) * from_origin).sum(dim=1).clamp_(min=0)

    def products(self) -> Tensor:
        """<row_i - c, row_j - c> -> [n, n] in float64 around a point c, which is one that keeps them precise."""
        if self._mix is not None:
            return self._mix @ self.candidates.products @ self._mix.T
        products = self.candidates.products
        return products[list(self.chosen)][:, list(self.chosen)]

    def products_around(self, centre: Tensor | None) -> Tensor:
        """<row_i - centre, row_j - centre> -> [n, n] in float64; None: the origin."""
        products = torch.zeros(self.m + 1, self.m + 1, dtype=torch.float64, device=self.candidates.tensor.device)
        products[:-1, :-1] = self.candidates.products_around(centre)
        usable = self.candidates.usable
        products[:-1, :-1] = products[:-1, :-1].where(usable & usable[:, None], 0)
        if centre is not None and bool(self.mix[:, -1].any()):  # the origin is at -centre
            square = passes.squared_norms(centre[None])[0]
            dots = passes.dots(self.candidates.tensor, centre)
            products[-1, :-1] = products[:-1, -1] = (square - dots).where(usable, 0)
            products[-1, -1] = square
        return self.mix @ products @ self.mix.T

    def squared_distances(self) -> Tensor:
        """||row_i - row_j||^2 -> [n, n] in float64."""
        if self._mix is None:
            distances = self.candidates.squared_distances
            return distances[list(self.chosen)][:, list(self.chosen)]
        differences = self._mix[:, None] - self._mix
        return ((differences @ self.candidates.products) * differences).sum(dim=-1).clamp_(min=0)

    def dots(self, vector: Tensor) -> Tensor:
        """<row, vector> -> [n] in float64."""
        dots = passes.dots(self.candidates.tensor, vector)[list(self.chosen)]
        return dots if self._mix is None else self._mix[:, list(self.chosen)] @ dots

    def combine(self, weights: Tensor) -> Tensor:
        """weights [n] @ rows -> [d], for weights of at least 0."""
        return passes.weighted_sum(self.candidates.tensor, (weights @ self.mix)[:-1])

    def average(self, kept: Tensor | None = None) -> Tensor:
        """Mean of the rows that were kept: [n] bool, all by default."""
        if kept is None:
            kept = torch.ones(self.n, dtype=torch.bool, device=self.candidates.tensor.device)
        return self.combine(kept.double() / kept.sum())

    def columnwise(self, columns: Callable[[], Columns]) -> Tensor:
        """What `columns()` makes of each column -> [d]; asked again when unusable candidates turn up on the way."""
        if self._mix is None and not self.candidates.checked:
            self._on_trust = True
            update = self._columns(columns(), range(self.m))
            self._on_trust = False
            if passes.all_finite(update):  # so was everything that it was made from
                self.candidates.trust()
                return update
            del update  # its memory is needed again
        return self._columns(columns(), self.chosen)

    def _columns(self, columns: Columns, chosen: Sequence[int]) -> Tensor:
        tensor = self.candidates.tensor
        suits = self._mix is None and kernels.suits(tensor)
        kernel = kernels.find(columns, len(chosen)) if suits else None
        if kernel is not None:
            return kernel([tensor[i] for i in chosen])
        began = time.perf_counter()
        out = passes.empty(self.d, tensor)
        for where in passes.column_slices(self.d):
            out[where] = evaluate(columns, self._made_of(tensor[:, where], chosen))
        if suits:
            kernels.note(columns, len(chosen), time.perf_counter() - began)
        return out

    def blocks(self, width: int = passes.WIDTH) -> Iterator[tuple[slice, Tensor]]:
        """The rows in pieces of columns, [n, width] each; not to be written to."""
        for columns in passes.column_slices(self.candidates.tensor.shape[1], width):
            yield columns, self._made_of(self.candidates.tensor[:, columns], self.chosen)

    def at(self, coordinates: Tensor) -> Tensor:
        """The rows at some of their coordinates [k] -> [n, k]."""
        return self._made_of(self.candidates.tensor[:, coordinates], self.chosen)

    def tensor(self) -> Tensor:
        """The rows as one tensor [n, d], which is made for it."""
        return torch.cat([block for _, block in self.blocks()], dim=1).to(self.candidates.tensor.dtype)

    def each(self, descent: Descent) -> Tensor:
        """The descent of each row -> [n]."""
        if self._mix is not None:
            return _one_each(descent(self.tensor()), self.n)
        return _one_each(descent(self.candidates.tensor), self.m)[list(self.chosen)]

    def _made_of(self, block: Tensor, chosen: Sequence[int]) -> Tensor:
        """The rows of a block [m, k] of the candidates -> [n, k]."""
        if len(chosen) < self.m:
            block = block[list(chosen)]
        block = block.to(passes.working_dtype(block.dtype))
        if self._mix is None:
            return block
        limit = torch.finfo(block.dtype).max  # a mean of numbers at the limit may be rounded beyond it
        return (self._mix[:, list(chosen)].to(block.dtype) @ block).clamp_(-limit, limit)

    def result(
        self, update: Tensor, kept: Tensor | None = None, scores: Tensor | None = None, state: object = None
    ) -> Aggregate:
        """The aggregate in terms of the workers; `kept` [n] bool, all by default, and `scores` [n] are of the rows."""
        mix = self.mix if kept is None else self.mix[kept]
        workers_kept = (mix[:, :-1] != 0).any(dim=0)
        if scores is None:
            return Aggregate(update, None, workers_kept, state)
        of_workers = torch.full((self.m,), -torch.inf, dtype=torch.float64, device=scores.device)
        for owner, score in zip(self.owners, scores, strict=True):
            of_workers[owner] = score
        return Aggregate(update, of_workers, workers_kept, state)


class OnRows:
    """A rule that is written for `Rows`, so that it can follow pre-aggregators in a chain."""

    def __call__(self, candidates: Tensor, descent: Descent | None = None, state: object = None) -> Aggregate:
        return self.on_rows(Rows(Candidates(candidates)), descent, state)

    def on_rows(self, rows: Rows, descent: Descent | None, state: object) -> Aggregate:
        raise NotImplementedError


def keep_lowest(values: Tensor, num: int) -> Tensor:
    """[n] bool: the `num` lowest values; the lower row wins a tie."""
    kept = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    kept[values.argsort(stable=True)[:num]] = True
    return kept


def _one_each(descents: Tensor, num: int) -> Tensor:
    if not isinstance(descents, Tensor) or descents.shape != (num,):
        found = list(descents.shape) if isinstance(descents, Tensor) else type(descents).__name__
        raise ValueError(f"A rule needs one descent for each of the {num} candidates. Found shape {found}.")
    return descents.detach()
