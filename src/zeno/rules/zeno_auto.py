"""ZenoAuto: Zeno without tuning. The update is the mixture of candidates that is nearest to the true gradient.

The server's own gradient g, on samples that it never trains on, is noisy. But it is right on average, and its noise is
independent of the workers. So the squared distance of any mixture from g estimates, up to a constant, its squared
distance from the true gradient. Decayed means over the steps (^) average the noise out, while a bias stays:

    w = argmin  || sum_i w_i u_i^ - g^ ||^2 + (1 - memory) || sum_i w_i u_i - g ||^2   over  w >= 0, sum(w) = 1
    update = sum_i w_i u_i

The second term is the error at this step alone, which the means hide, as of a worker that turns. The weights sum to 1,
so it is enough to remember the errors u_i - g, as short sketches. A worker without a usable candidate keeps its mean
error.

The mixture has two more columns. The server's own gradient, on the other half of its samples, makes every worker
dispensable. The choice of this step alone helps where memory cannot, when other workers are faulty at every step: it is
FLTrust's update by the server's own gradient, which takes part in it. Every sample of the server belongs to one half
for good: a model that has learned the samples of one half by heart is still judged by those of the other.

docs/zeno-auto.md has the reasons, a picture and the guarantee.

Shapes: m workers, d parameters, k numbers in a sketch.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zeno.rules.fltrust import cosines_of, trust
from zeno.rules.linalg.passes import LARGEST, weighted_sum, working_dtype
from zeno.rules.linalg.simplex import nearest_mixture
from zeno.rules.linalg.sketch import sketch
from zeno.rules.parameters import AT_LEAST_1, NON_NEGATIVE, Requirement
from zeno.rules.rule import Aggregate, Change, Oracle, PositiveCount, Rows, Rule, likeness_of

LEAST = 0.02  # of an equal weight: what is below belongs to large errors, and risks more than it adds
SHORT = 1e-3  # of the length of the server's own gradient
COLUMNS = ("counts", "errors", "weights")  # of a memory, with a row for each worker and two more
AT_LEAST_2 = Requirement("a whole number of at least 2", lambda value: AT_LEAST_1.holds(value) and value > 1, "samples")
BELOW_1 = Requirement("a number of at least 0 and below 1", lambda value: NON_NEGATIVE.holds(value) and value < 1)


@dataclass(frozen=True)
class ZenoAuto(Rule):
    """Mixture of the candidates and the server's own gradient that is nearest to the true gradient; no tuning.

    Tolerates any number of faulty workers: if all are faulty, the server trains on its own gradient. It uses `samples`
    of the server per step, and half as many again to check an update that leaves a doubt. `memory` is the decay of the
    mean errors from step to step, `sketch` the number of values by which a candidate is remembered.
    """

    samples: Annotated[int, AT_LEAST_2] = 64
    memory: Annotated[float, BELOW_1] = 0.98
    sketch: PositiveCount = 16_384

    def for_workers(self, state: Any, change: Change) -> object:
        if state is None:
            return None
        return {**state, **{name: torch.cat([change(state[name][:-2], 0.0), state[name][-2:]]) for name in COLUMNS}}

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        factors = rows.factors  # [m]
        if factors is None:
            raise ValueError(
                f"{self} needs one row for each candidate, to know whose it is. Found mixtures of several. "
                "Remove the pre-aggregators that mix candidates, or use Zeno."
            )
        candidates, oracle = rows.geometry.candidates, rows.require_oracle(oracle)
        halves = rows.server_gradients(oracle)  # [2, d]
        memory = Memory.of(state, candidates, halves, self.sketch)
        sketches = memory.sketch(candidates) * factors[:, None]  # [m, k]
        compared = Comparison.of(memory, self.memory, sketches, memory.sketch(halves))
        mixture = compared.mixture()

        def update(weights: Tensor) -> Tensor:  # [m + 1] -> [d]
            of_workers = weighted_sum(candidates, factors * weights[:-1])
            return of_workers.add_(own_gradient(halves, weights[-1]), alpha=float(weights[-1]))

        weights = mixture.tries[0]  # [m + 1]
        if mixture.doubtful:
            weights = self._first_harmless(mixture.tries, update, oracle)
        return Aggregate(
            update(weights),
            factors * weights[:-1],
            compared.scores,
            vars(mixture.memory),
            float(weights[-1]),
            likeness=compared.likeness,
        )

    def _first_harmless(self, tries: list[Tensor], update: Callable[[Tensor], Tensor], oracle: Oracle) -> Tensor:
        """The first weights whose update does not raise the loss on fresh samples, within a standard error; else 0."""
        descents = oracle.fresh_descents([update(weights) for weights in tries], self.samples // 2)  # [n, p]
        errors = (descents.var(dim=1, correction=0) / max(1, descents.shape[1] - 1)).sqrt()
        harmless = (descents.mean(dim=1) + errors >= 0).tolist()  # False for NaN
        return next((weights for weights, fine in zip(tries, harmless, strict=True) if fine), 0 * tries[0])


@dataclass(frozen=True, eq=False)
class Mixture:
    """The mixture of a step that is nearest to the server's gradient."""

    memory: "Memory"  # after the step
    tries: list[Tensor]  # weights [m + 1] of the workers and of the server: the best, those of this step, the server's
    doubtful: bool  # whether the best is no nearer to the server's own gradient than 0 is


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidates of a step beside the server's two gradients, by sketches of k numbers."""

    memory: "Memory"  # with the errors of this step, and the weights of the last
    decay: float
    usable: Tensor  # [m]
    sketches: Tensor  # [m, k], 0 where unusable
    choice: Tensor  # [m + 1]
    columns: Tensor  # [m + 2, k]
    halves: Tensor  # [2, k]

    @classmethod
    def of(cls, memory: "Memory", decay: float, sketches: Tensor, halves: Tensor) -> "Comparison":
        """Of candidates whose sketches [m, k] are not finite where they are unusable."""
        usable = sketches.square().sum(dim=1) <= LARGEST**2
        sketches = torch.where(usable[:, None], sketches, 0)
        o, g = halves
        choice = _choice(torch.cat([sketches, o[None]]))
        columns = torch.cat([sketches, (choice[:-1] @ sketches + choice[-1] * o)[None], o[None]])
        memory = memory.after(decay, torch.cat([usable, usable.new_ones(2)]), columns, g)
        return cls(memory, decay, usable, sketches, choice, columns, halves)

    @property
    def scores(self) -> Tensor:
        """[m] of each candidate by itself."""
        return torch.where(self.usable, -(self.sketches - self.halves[1]).square().sum(dim=1), -torch.inf)

    @property
    def likeness(self) -> Tensor:
        """[2, m] as of an aggregate."""
        both = self.halves.mean(dim=0)
        return likeness_of(self.sketches @ both, self.sketches.square().sum(dim=1), both.square().sum())

    def mixture(self) -> Mixture:
        there = torch.cat([self.usable, self.usable.new_ones(2)])
        g = self.halves[1]
        now = torch.cat([self.columns[there], 0 * g[None]]) - g
        memory, found = self.memory.mixed(there, (1 - self.decay) ** 0.5 * now)
        weights, both = _spread(memory.weights, self.choice), self.halves.mean(dim=0)
        off = weights[:-1] @ self.sketches + weights[-1] * own_gradient(self.halves, weights[-1]) - both
        alone = torch.zeros_like(weights)
        alone[-1] = 1
        doubtful = bool(off.square().sum() >= both.square().sum())
        return Mixture(memory, [weights, _spread(found, self.choice), alone], doubtful)


def _choice(columns: Tensor) -> Tensor:
    """FLTrust's weights [m + 1] by the last of the columns [m + 1, k], which is the server's and takes part."""
    norms = columns.norm(dim=1)
    cosines = cosines_of(columns @ columns[-1], norms, norms[-1])
    return trust(torch.where(norms > SHORT * norms[-1], cosines, 0), norms, norms[-1])


def _spread(weights: Tensor, choice: Tensor) -> Tensor:
    """The weights of the workers and of the server [m + 1], with what the choice [m + 1] gets spread over them."""
    of_workers, of_choice, of_server = weights[:-2], weights[-2], weights[-1:]
    return torch.cat([of_workers, of_server]) + of_choice * choice


def own_gradient(halves: Tensor, weight: Tensor) -> Tensor:
    """The server's own gradient, for this weight: the larger it is, the less is to be judged, and both halves train."""
    return torch.lerp(halves[0], halves[1], float(weight) / 2)


@dataclass(frozen=True, eq=False)
class Memory:
    """Decayed means of sketches. The signs of the sketches are a secret, which no worker can fit a gradient to.

    The columns are the workers, the choice of a single step, and the server's own gradient.
    """

    seed: int  # of the signs
    counts: Tensor  # [m + 2] steps at which each column was there
    errors: Tensor  # [m + 2, k] u - g
    target: Tensor  # [k] g
    weights: Tensor  # [m + 2] of the last step

    @classmethod
    def new(cls, m: int, k: int, seed: int, like: Tensor) -> "Memory":
        """Of no step, for m workers; on the device of `like`."""
        errors = like.new_zeros(m + 2, k, dtype=working_dtype(like.dtype))
        counts = like.new_zeros(m + 2, dtype=torch.float64)
        weights = counts.clone()
        weights[-1] = 1.0
        return cls(seed, counts, errors, torch.zeros_like(errors[0]), weights)

    @classmethod
    def of(cls, state: Any, candidates: Tensor, halves: Tensor, k: int) -> "Memory":
        """What the rule returned as its state; a new one from None. Workers that are new have a count of 0."""
        m, d = candidates.shape
        if state is None:
            secret = hashlib.blake2b(halves.float().cpu().numpy().tobytes(), digest_size=8)  # the server's samples
            return cls.new(m, min(k, d), int.from_bytes(secret.digest(), "big"), candidates)
        tensors = {name: value.to(candidates.device) for name, value in state.items() if isinstance(value, Tensor)}
        found: dict[str, Any] = {**state, **tensors}
        before = len(found["errors"]) - 2
        if before > m:
            raise ValueError(f"A memory of {before} workers does not fit {m}. Pass NaN for workers that left.")
        for name in COLUMNS:
            joined = found[name].new_zeros(m - before, *found[name].shape[1:])
            found[name] = torch.cat([found[name][:before], joined, found[name][before:]])
        return cls(**found)

    def sketch(self, rows: Tensor) -> Tensor:
        """The sketches of rows [n, d] -> [n, k] in float64."""
        return sketch(rows, len(self.target), self.seed).double()

    def after(self, decay: float, there: Tensor, columns: Tensor, g: Tensor) -> "Memory":
        """With the columns that are there at this step."""

        def mean(before: Tensor, now: Tensor, rate: Tensor) -> Tensor:
            return (before + rate * (now - before)).to(before.dtype)

        counts = self.counts + there
        rates = (1 - decay) / (1 - decay ** counts.clamp(min=1)) * there  # the first step counts in full
        errors = mean(self.errors, columns - g, rates[:, None])
        return replace(self, counts=counts, errors=errors, target=mean(self.target, g, rates[-1]))

    def mixed(self, there: Tensor, now: Tensor) -> tuple["Memory", Tensor]:
        """With the weights for the columns that are there, whose errors at this step, and those of 0, are `now`.

        Zero is a column too: a shorter mixture has less noise, and is nearer to g^ for that. But it is only slower. So
        what zero gets goes to the weights of the last step, until the mixture is as long as the server's own gradient.
        Also returns the weights that were found anew [m + 2].
        """
        means = torch.cat([self.errors[there], -self.target[None]]).double()
        found = nearest_mixture(torch.cat([means, now], dim=1))[:-1].to(means.device)
        columns, least = means[:-1] - means[-1], LEAST / (len(there) - 2)
        length = columns[-1].norm()
        found = torch.where((found < least) | (columns.norm(dim=1) <= SHORT * length), 0, found)
        before = self.weights[there]
        before[-1] += 1 - before.sum()  # the weights of those that are not there
        rest = (1 - found.sum()) * before
        room = (length - (found @ columns).norm()) / (rest @ columns).norm()
        filled = found + room.nan_to_num(0).clamp(0, 1) * rest
        weights, anew = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        weights[there], anew[there] = torch.where(filled < least, 0, filled), found
        return replace(self, weights=weights), anew
