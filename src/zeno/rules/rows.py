"""The rows that a rule combines into an update: the usable candidates, or mixtures of them.

A pre-aggregator such as NNM replaces every candidate by a weighted mean of candidates. These means are never computed:
a pre-aggregator returns their weights, an [n, m + 1] matrix over the m candidates and the origin. Distances between
mixtures follow from distances between candidates, and a weighted sum of mixtures is a weighted sum of candidates. So a
chain reads the candidates as often as its last rule does, and needs no memory in between.

The exception is a mixture whose parts cancel, such as the mean of H and -H + u: beside the rounding errors of H,
nothing is left of u. Then all mixtures are formed: they are computed, and are what the rule reads from then on.

Shapes: m workers, n rows, d parameters.
"""

import time
from collections.abc import Iterator
from functools import cached_property
from itertools import compress

import torch
from torch import Tensor

from zeno.rules.aggregate import Aggregate, Oracle, TooFewUsable, descents_of
from zeno.rules.linalg import kernels, passes
from zeno.rules.linalg.geometry import CANCELLED, Formed, Geometry, lengths
from zeno.rules.linalg.sorting_network import Columns, evaluate
from zeno.rules.parameters import Part


class Rows:
    """n rows of d finite numbers, read-only. Every method that reads the candidates does so in one pass.

    Ask for norms, products or distances before `n` and `remaining` where a rule needs both: which rows are usable then
    follows from them, without another pass.
    """

    def __init__(
        self,
        geometry: Geometry,
        part: Part,  # that uses the rows: errors name it
        chosen: list[int] | None = None,  # which candidates; None: all that are usable
        mix: Tensor | None = None,  # [n, m + 1], each row sums to 1 with the origin, the last; None: candidates as is
        owners: Tensor | None = None,  # [n, m] bool
        formed: Formed | None = None,  # what the geometry was formed from; None: it has the candidates as received
    ) -> None:
        self.geometry, self.part = geometry, part
        self.received = geometry if formed is None else formed.received
        self.m, self.d = self.received.candidates.shape
        self.device = geometry.candidates.device
        self.mixed = mix is not None or formed is not None
        self._chosen, self._mix, self._owners, self._formed = chosen, mix, owners, formed
        self._precise = False  # whether it is known that no mixture has parts that cancel

    def used_by(self, part: Part) -> "Rows":
        """The same rows for another part of a chain."""
        return Rows(self.geometry, part, self._chosen, self._mix, self._owners, self._formed)

    @property
    def n(self) -> int:
        """How many rows there are."""
        return len(self.chosen) if self._mix is None else len(self._mix)

    @property
    def size(self) -> int:
        """How many rows there are, plus one for each unusable candidate."""
        return self.n + self.num_unusable if self.mixed else self.m

    @property
    def num_unusable(self) -> int:
        return int((~self.received.usable).sum())

    def require(self, least: int, words: str, **parameter: int) -> None:
        """Raises where there are fewer than `least` rows, unusable ones included."""
        if self.size < least:
            ((name, value),) = parameter.items()
            raise ValueError(
                f"{type(self.part).__name__} needs {words} candidates. Found {self.size} with {name}={value}. "
                f"Lower {name} or add workers."
            )

    def remaining(self, faulty: int) -> int:
        """How many of `faulty` rows can be among these: every unusable candidate was one of them."""
        self.require_usable(faulty)
        return faulty - self.num_unusable

    def require_usable(self, faulty: int | None = None) -> None:
        """Raises if more candidates are unusable than `faulty`, by default as many as the part tolerates."""
        most = self.part.most_faulty(self.m) if faulty is None else faulty
        if self.num_unusable > min(most, self.m - 1):
            raise TooFewUsable.of(self.part, max(1, self.m - most), self.received.usable)

    @property
    def chosen(self) -> list[int]:
        """The candidates that the rows are, or are made of."""
        if self._chosen is None:
            self.require_usable()
            self._chosen = self.geometry.usable.nonzero().flatten().tolist()
        return self._chosen

    @cached_property
    def mix(self) -> Tensor:
        """[n, m + 1]: each row as weights of the candidates, or of the rows that were formed, and of the origin."""
        if self._mix is not None:
            return self._mix
        num = len(self.geometry.candidates)
        return torch.eye(num, num + 1, dtype=torch.float64, device=self.device)[self.chosen]

    @property
    def owners(self) -> Tensor:
        """[n, m] bool: the workers that each row stands for."""
        return self.mix[:, :-1] != 0 if self._owners is None else self._owners

    @cached_property
    def factors(self) -> Tensor | None:
        """[m]: what each candidate is multiplied by, 0 without a row; None if rows are mixtures of several."""
        if self._formed is not None:
            return None
        if self._mix is None and self._chosen is None:
            return torch.ones(self.m, dtype=torch.float64, device=self.device)
        part_of = self.mix[:, :-1] != 0
        scaled = bool((part_of.sum(dim=0) <= 1).all() and (part_of.sum(dim=1) <= 1).all())
        return self.mix[:, :-1].sum(dim=0) if scaled else None

    def only(self, kept: Tensor) -> "Rows":
        """The rows that are kept, [n] bool."""
        owners = None if self._owners is None else self._owners[kept]
        if self._mix is None:
            chosen = list(compress(self.chosen, kept.tolist()))
            return Rows(self.geometry, self.part, chosen, None, owners, self._formed)
        return Rows(self.geometry, self.part, None, self._mix[kept], owners, self._formed)

    def mixtures(self, weights: Tensor, owners: Tensor | None = None) -> "Rows":
        """Weighted sums of these rows, by weights [k, n]; the origin has the rest.

        `owners` [k, n] says which rows each of them stands for, if not for itself.
        """
        mix = weights @ self.mix
        mix[:, -1] += 1 - mix.sum(dim=1)
        whose = self.owners if owners is None else (owners.double() @ self.owners.double()) > 0
        return Rows(self.geometry, self.part, None, mix, whose, self._formed)

    def squared_norms(self) -> Tensor:
        """||row||^2 -> [n] in float64."""
        if self._mix is not None:
            squares, parts = lengths(self._mix, self.geometry.products_around(None))
            if not self._form_if_cancelled(squares, parts):
                return squares.clamp_(min=0)
        return self.geometry.squared_norms[self.chosen]

    def squared_distances(self) -> Tensor:
        """||row_i - row_j||^2 -> [n, n] in float64."""
        if self._mix is None or self._form_if_cancelled(*lengths(self._mix, self.geometry.products)):
            return self.geometry.squared_distances[self.chosen][:, self.chosen]
        differences = self._mix[:, None] - self._mix
        return ((differences @ self.geometry.products) * differences).sum(dim=-1).clamp_(min=0)

    def products(self) -> Tensor:
        """<row_i - c, row_j - c> -> [n, n] in float64, around a point c that keeps them precise."""
        if self._mix is not None:
            self._form_if_cancelled(*lengths(self._mix, self.geometry.products))
        return self.mix @ self.geometry.products @ self.mix.T

    def products_around(self, centre: Tensor | None) -> Tensor:
        """<row_i - centre, row_j - centre> -> [n, n] in float64; None: the origin."""
        products = self.geometry.products_around(centre, bool(self.mix[:, -1].any()))
        if self._mix is not None and self._form_if_cancelled(*lengths(self._mix, products)):
            products = self.geometry.products_around(centre)
        return self.mix @ products @ self.mix.T

    def dots(self, vector: Tensor) -> Tensor:
        """<row, vector> -> [n] in float64."""
        if self._mix is not None:
            parts = self._mix[:, :-1].abs() @ self.geometry.usable_squares.sqrt()
            # Rounding errors of parts of about the same lengths are small beside the other rows.
            if bool(parts.max() * CANCELLED > parts.min()):
                self._form_if_cancelled(*lengths(self._mix, self.geometry.products_around(None)))
        dots = passes.dots(self.geometry.candidates, vector)[self.chosen]
        return dots if self._mix is None else self._mix[:, self.chosen] @ dots

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The rows in pieces of columns, [n, width] each; not to be written to."""
        for columns in passes.column_slices(self.d):
            yield columns, self._made_of(self.geometry.candidates[:, columns])

    def at(self, coordinates: Tensor) -> Tensor:
        """The rows at some of their coordinates [k] -> [n, k]."""
        return self._made_of(self.geometry.candidates[:, coordinates])

    def tensor(self) -> Tensor:
        """The rows as a new tensor [n, d]."""
        out = self.geometry.candidates.new_empty(self.n, self.d)
        for columns, block in self.blocks():
            out[:, columns] = block
        return out

    def _form_if_cancelled(self, squares: Tensor, parts: Tensor) -> bool:
        """Forms the mixtures if a squared length, of these, is too small beside the lengths of its parts."""
        lost = bool((squares < CANCELLED * parts.square()).any())
        if lost:
            assert self._mix is not None
            self._owners, self._formed = self.owners, Formed(self.received, self._of_workers(self._mix[:, :-1]))
            self.geometry, self._chosen, self._mix = Geometry(self.tensor()), list(range(self.n)), None
            self.__dict__.pop("mix", None)
        self._precise = True
        return lost

    def _made_of(self, block: Tensor) -> Tensor:
        """The rows from a block [m, k] of the candidates -> [n, k]."""
        chosen = self.chosen
        block = (block[chosen] if len(chosen) < self.m else block).to(passes.working_dtype(block.dtype))
        if self._mix is None:
            return block
        limit = torch.finfo(block.dtype).max  # a mean of numbers at the limit may be rounded beyond it
        return (self._mix[:, chosen].to(block.dtype) @ block).clamp_(-limit, limit)

    def descents(self, oracle: Oracle | None) -> Tensor:
        """By how much each row lowers the loss on the server's samples -> [n] in float64."""
        rows = self.tensor() if self.mixed else self.geometry.candidates
        found = descents_of(self.require_oracle(oracle), rows, self._senders())
        if not isinstance(found, Tensor) or found.shape != rows.shape[:1]:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"A rule needs one descent for each of the {len(rows)} candidates. Found shape {shape}.")
        found = found.detach().to(torch.float64)
        return found if self.mixed else found[self.chosen]

    def _senders(self) -> list[int | None]:
        """The worker that sent each candidate, or what a row is a multiple of; None for a mixture of several."""
        if not self.mixed:
            return list(range(self.m))
        parts = self._of_workers(self.mix[:, :-1]) != 0
        return [part.index(True) if sum(part) == 1 else None for part in parts.tolist()]

    def slopes(self, gradient: Tensor, oracle: Oracle) -> Tensor:
        """lr * <gradient, row>, the descent to first order -> [n] in float64."""
        lr = oracle.lr  # one rate, or one for each parameter [d]
        return self.dots(lr * gradient) if isinstance(lr, Tensor) and lr.ndim else float(lr) * self.dots(gradient)

    def server_gradient(self, oracle: Oracle | None, after: Tensor | None = None) -> Tensor:
        """The gradient on the server's samples, at the parameters or after a step [d] -> [d].

        Raises if it is not finite at the parameters.
        """
        oracle = self.require_oracle(oracle)
        gradient = (oracle.gradient() if after is None else oracle.gradient(after)).detach()
        if gradient.shape != (self.d,):
            raise ValueError(f"{self.part} needs a gradient of {self.d} numbers. Found shape {list(gradient.shape)}.")
        return gradient if after is not None else self.require_finite(gradient)

    def server_gradients(self, oracle: Oracle | None) -> Tensor:
        """The gradients on the two halves of the server's samples -> [2, d]."""
        gradients = self.require_oracle(oracle).half_gradients().detach()
        if gradients.shape != (2, self.d):
            found = list(gradients.shape)
            raise ValueError(f"{self.part} needs 2 gradients of {self.d} numbers. Found shape {found}.")
        return self.require_finite(gradients)

    def require_finite(self, gradients: Tensor) -> Tensor:
        """The server's gradients, or their sketches; raises ValueError unless they are finite."""
        if not bool(gradients.isfinite().all()):
            raise ValueError(
                f"{self.part} needs a finite gradient on the server's samples. Found NaN or Inf in it. The parameters "
                "or the samples are not finite, or lr is too high: go back to an earlier checkpoint with a lower lr, "
                "or check the samples."
            )
        return gradients

    def require_oracle(self, oracle: Oracle | None) -> Oracle:
        if not isinstance(oracle, Oracle):
            raise ValueError(
                f"{self.part} needs an oracle for the server's samples. Found {oracle!r}. "
                "Pass oracle=problem.at(params, lr, batch), or any zeno.Oracle."
            )
        return oracle

    def average(self, kept: Tensor | None = None, scores: Tensor | None = None, state: object = None) -> Aggregate:
        """The mean of the rows that are kept: [n] bool, all by default."""
        kept = torch.ones(self.n, dtype=torch.bool, device=self.device) if kept is None else kept
        return self.weighted_sum(kept.double() / kept.sum(), scores, state)

    def weighted_sum(self, weights: Tensor, scores: Tensor | None = None, state: object = None) -> Aggregate:
        """weights [n] @ rows."""
        shares = (weights @ self.mix)[:-1]
        update = passes.weighted_sum(self.geometry.candidates, shares)
        if self._mix is not None and not self._precise:
            parts = shares.abs() @ self.geometry.usable_squares.sqrt()
            if self._form_if_cancelled(passes.squared_norms(update[None])[0], parts):
                return self.weighted_sum(weights, scores, state)
        return self.result(update, weights, scores, state)

    def columnwise(self, formula: str, trim: int | None = None) -> Aggregate:
        """A formula of `sorting_network` for each column. It drops `trim` values, counting the unusable candidates."""
        if not self.mixed and self._chosen is None:
            # Nearly always all candidates are usable. If so, the update shows it, and finding out costs no pass.
            everyone = Rows(self.geometry, self.part, list(range(self.m)))
            update = everyone._columns(Columns(formula, trim or 0))
            if passes.all_moderate(update):
                return everyone.result(update)
            del update  # its memory is needed again
        return self.result(self._columns(Columns(formula, 0 if trim is None else self.remaining(trim))))

    def _columns(self, columns: Columns) -> Tensor:
        candidates = self.geometry.candidates
        suits = self._mix is None and kernels.suits(candidates)
        kernel = kernels.find(columns, self.n) if suits else None
        if kernel is not None:
            return kernel([candidates[i] for i in self.chosen])
        began = time.perf_counter()
        out = passes.empty(self.d, candidates)
        for where, block in self.blocks():
            out[where] = evaluate(columns, block)
        if suits:
            kernels.note(columns, self.n, time.perf_counter() - began)
        return out

    def result(
        self, update: Tensor, weights: Tensor | None = None, scores: Tensor | None = None, state: object = None
    ) -> Aggregate:
        """The aggregate in terms of the workers; weights [n], uniform by default, and scores [n] are those of rows."""
        if weights is None:
            weights = torch.full((self.n,), 1 / self.n, dtype=torch.float64, device=self.device)
        scores = None if scores is None else self.by_worker(scores, -torch.inf)
        return Aggregate(update, self._of_workers((weights @ self.mix)[:-1]), scores, state)

    def in_terms_of_workers(self, found: Aggregate) -> Aggregate:
        """The aggregate of a rule that took these rows for the candidates."""
        result = self.result(found.update, found.weights.to(torch.float64), found.scores, found.state)
        return result._replace(own=found.own, note=found.note)

    def _of_workers(self, weights: Tensor) -> Tensor:
        """Weights [..., m] of the candidates as received."""
        return weights if self._formed is None else weights @ self._formed.shares

    def remembered(self, state: object, start: float) -> Tensor:
        """One number for each worker [m]: the state of the rule, or `start` at the first step."""
        if not isinstance(state, Tensor):
            return torch.full((self.m,), start, dtype=torch.float64, device=self.device)
        if state.shape != (self.m,):
            raise ValueError(
                f"{self.part} needs one number for each of {self.m} workers as its state. "
                f"Found shape {list(state.shape)}."
            )
        return state.to(self.device)  # a checkpoint's: CPU

    def by_worker(self, values: Tensor, without: float | Tensor) -> Tensor:
        """Values [n] of the rows -> [m], for the workers that they stand for; the others keep `without`, one or [m]."""
        found = torch.zeros(self.m, dtype=torch.float64, device=values.device) + without
        for owner, value in zip(self.owners, values, strict=True):
            found[owner] = value
        return found

    def by_row(self, values: Tensor) -> Tensor:
        """Values [m] of the workers -> [n], the mean of the workers that each row stands for."""
        owners = self.owners.double()
        return owners @ values / owners.sum(dim=1)
