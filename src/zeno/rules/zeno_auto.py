"""ZenoAuto: Zeno without tuning. The update is a mixture of candidates about as near to the true gradient as any.

The server's own gradient g, on samples that it never trains on, is noisy. But it is right on average, and its noise is
independent of the workers. So the squared distance of any mixture from g estimates, up to a constant, its squared
distance from the true gradient. Decayed means over the steps (^) average the noise out, while a bias stays:

    E(w) = || sum_i w_i u_i^ - g^ ||^2 + (1 - memory) || sum_i w_i u_i - g ||^2    for  w >= 0, sum(w) = 1
    update = sum_i w_i u_i

The second term is the error at this step alone, which the means hide, as of a worker that turns. The weights sum to 1,
so it is enough to remember the errors u_i - g, as short sketches. A worker without a usable candidate keeps its mean
error.

Of all weights with about the least E, the most even have the least noise. So the weights are equal, for as many workers
as can be; and they stay as they are while nothing speaks against them (`mixture_weights`).

If no mixture of workers is near, two more columns help. The server's own gradient, on the other half of its samples,
makes every worker dispensable. The choice of this step alone helps where memory cannot, when other workers are faulty
at every step: it is FLTrust's update by the server's own gradient, which takes part in it. Every sample of the server
belongs to one half for good: a model that has learned the samples of one half by heart is still judged by those of the
other.

docs/zeno-auto.md has the reasons, a picture and the guarantee.

Shapes: m workers, d parameters, k numbers in a sketch.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zeno.rules.fltrust import cosines_of, trust
from zeno.rules.linalg.passes import LARGEST, weighted_sum, working_dtype
from zeno.rules.linalg.sketch import sketch
from zeno.rules.mixture_weights import SHORT, weigh
from zeno.rules.parameters import AT_LEAST_1, NON_NEGATIVE, Requirement
from zeno.rules.rule import Aggregate, Change, Oracle, PositiveCount, Rows, Rule, likeness_of

COLUMNS = ("counts", "errors", "weights")  # of a memory, with a row for each worker and two more
AT_LEAST_2 = Requirement("a whole number of at least 2", lambda value: AT_LEAST_1.holds(value) and value > 1, "samples")
BELOW_1 = Requirement("a number of at least 0 and below 1", lambda value: NON_NEGATIVE.holds(value) and value < 1)


@dataclass(frozen=True)
class ZenoAuto(Rule):
    """Even mixture of the workers that together are nearest to the true gradient; no tuning.

    Tolerates any number of faulty workers: if all are faulty, the server trains on its own gradient. It uses `samples`
    of the server per step. `memory` is the decay of the mean errors from step to step, `sketch` the number of values by
    which a candidate is remembered.
    """

    samples: Annotated[int, AT_LEAST_2] = 64
    memory: Annotated[float, BELOW_1] = 0.98
    sketch: PositiveCount = 16_384

    def for_workers(self, state: Any, change: Change) -> object:
        if state is None:
            return None
        return {**state, **{name: torch.cat([change(state[name][:-2], 0.0), state[name][-2:]]) for name in COLUMNS}}

    def prepare(self, oracle: Oracle, state: object) -> None:
        oracle.half_gradients()

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
        weights, memory = compared.weights()  # [m + 1]
        update = weighted_sum(candidates, factors * weights[:-1])
        update.add_(own_gradient(halves, weights[-1]), alpha=float(weights[-1]))
        return Aggregate(
            update,
            factors * weights[:-1],
            compared.scores,
            vars(memory),
            float(weights[-1]),
            likeness=compared.likeness,
        )


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

    def weights(self, among: Tensor | None = None) -> tuple[Tensor, "Memory"]:
        """The weights of the workers, by default all, and of the server [m + 1], and the memory with them."""
        there = torch.cat([self.usable if among is None else self.usable & among, self.usable.new_ones(2)])
        g = self.halves[1]
        now = torch.cat([self.columns[there], 0 * g[None]]) - g
        found, memory = self.memory.weighed(there, (1 - self.decay) ** 0.5 * now, 1 / (1 - self.decay))
        return _spread(found, self.choice), memory


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
    overlap: Tensor  # [2] decayed sums: <h, h^>^2 and |h|^2 |h^|^2, with h = o - g at a step and h^ of the steps before

    @classmethod
    def new(cls, m: int, k: int, seed: int, like: Tensor) -> "Memory":
        """Of no step, for m workers; on the device of `like`."""
        errors = like.new_zeros(m + 2, k, dtype=working_dtype(like.dtype))
        counts = like.new_zeros(m + 2, dtype=torch.float64)
        weights = counts.clone()
        weights[-1] = 1.0
        return cls(seed, counts, errors, torch.zeros_like(errors[0]), weights, counts.new_zeros(2))

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
        off, usual = columns[-1] - g, self.errors[-1].to(g)
        overlap = torch.stack([(off @ usual).square(), off.square().sum() * usual.square().sum()])
        overlap = decay * self.overlap + overlap.to(self.overlap)
        return replace(self, counts=counts, errors=errors, target=mean(self.target, g, rates[-1]), overlap=overlap)

    @property
    def repeated(self) -> float:
        """The share of the server's noise that is the same at each step, as with few samples: 0 to 1."""
        return float((self.overlap[0] / self.overlap[1]).nan_to_num(1.0))

    def weighed(self, there: Tensor, now: Tensor, span: float) -> tuple[Tensor, "Memory"]:
        """The weights [m + 2] for the columns that are there, whose errors at this step, and that of 0, are `now`.

        Also returns the memory with them. Who is not there has no weight, and will have the one of before on its
        return. Workers that joined late, less than the `span` of the memory ago, are tried with as much as any.
        """
        means = torch.cat([self.errors[there], -self.target[None]]).double()
        before, late = self.weights[there], self._late(span)[there]
        tries = [torch.where(late, before.max(), before), before] if bool(late.any()) else [before]
        filled = min(1.0, float(self.counts[-1]) / span)
        found = weigh(torch.cat([means, now], dim=1), tries, self.repeated, filled)
        weights, kept = torch.zeros_like(self.weights), self.weights.clone()
        weights[there] = found
        if tries[0].any() or found[:-1].any():  # else the own gradient stood in for workers that were not there
            kept[there] = found
        return weights, replace(self, weights=kept)

    def _late(self, span: float) -> Tensor:
        """[m + 2] which workers are there for the first time, or have been at few of the steps that others were at."""
        most = self.counts[:-2].amax() if len(self.counts) > 2 else self.counts[-1]
        late = (self.counts <= 1) | (2 * self.counts < most) & (self.counts < span)
        late[-2:] = False
        return late
