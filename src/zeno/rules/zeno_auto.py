"""ZenoAuto: Zeno without tuning. The update is the mixture of candidates that is nearest to the true gradient.

The server's own gradient g, on samples that it never trains on, is noisy. But it is right on average, and its noise is
independent of the workers. So the squared distance of any mixture from g estimates, up to a constant, its squared
distance from the true gradient. Decayed means over the steps (^) average the noise out, while a bias stays:

    w = argmin  || sum_i w_i u_i^ - g^ ||^2   over  w >= 0, sum(w) = 1
    update = sum_i w_i u_i                    with the candidates of this step

The weights sum to 1, so it is enough to remember the errors u_i - g, as short sketches. A worker without a usable
candidate keeps its mean error.

The mixture has two more columns. The server's own gradient, on the other half of its samples, makes every worker
dispensable. The choice of this step alone, which is FLTrust's update by that gradient, helps where memory cannot: when
other workers are faulty at every step. Every sample of the server belongs to one half for good: a model that has
learned the samples of one half by heart is still judged by those of the other.

docs/zeno-auto.md has the reasons, a picture and the guarantee.

Shapes: m workers, d parameters, k numbers in a sketch.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zeno.rules.fltrust import cosines_of, trust
from zeno.rules.linalg.passes import weighted_sum, working_dtype
from zeno.rules.linalg.simplex import nearest_mixture
from zeno.rules.linalg.sketch import sketch
from zeno.rules.parameters import AT_LEAST_1, NON_NEGATIVE, Requirement
from zeno.rules.rule import Aggregate, Oracle, PositiveCount, Rows, Rule

SURE = 3.0  # standard errors
LEAST = 0.02  # of an equal weight: what is below belongs to large errors, and risks more than it adds
SHORT = 1e-3  # of the length of the server's own gradient
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
    memory: Annotated[float, BELOW_1] = 0.9
    sketch: PositiveCount = 16_384

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        if rows.mixed:
            raise ValueError(
                f"{self} needs the candidates as received, to know whose they are. Found mixtures of them. "
                "Remove the pre-aggregators, or use Zeno."
            )
        candidates, oracle = rows.geometry.candidates, rows.require_oracle(oracle)
        halves = rows.server_gradients(oracle)  # [2, d]
        memory = Memory.of(state, candidates, halves, self.sketch)
        sketches = memory.sketch(candidates)
        usable = sketches.square().sum(dim=1).isfinite()
        sketches[~usable] = 0
        own_sketch, g = memory.sketch(halves)

        norms, length = sketches.norm(dim=1), own_sketch.norm()
        choice = trust(cosines_of(sketches @ own_sketch, norms, length), norms, length)
        memory = memory.after(self.memory, usable, sketches - g, choice @ sketches - g, own_sketch - g, g)
        memory = memory.mixed(usable, bool(choice.any()))
        of_choice, own = memory.weights[-2:].tolist()
        weights = memory.weights[:-2] + of_choice * choice

        gradient = torch.lerp(
            halves[0], halves[1], own / 2
        )  # both halves are for training where nobody is to be judged
        update = weighted_sum(candidates, weights).add_(gradient, alpha=own)
        both = (own_sketch + g) / 2
        off = weights @ sketches + own * torch.lerp(own_sketch, g, own / 2) - both
        doubtful = bool(off.square().sum() >= both.square().sum())  # the update is no nearer to it than 0 is
        if doubtful and self._harmful(update, gradient, oracle):
            weights, own, update = torch.zeros_like(weights), 1.0, gradient
        scores = torch.where(usable, -(sketches - g).square().sum(dim=1), -torch.inf)
        return Aggregate(update, weights, scores, vars(memory), own)

    def _harmful(self, update: Tensor, gradient: Tensor, oracle: Oracle) -> bool:
        """Whether, on fresh samples, the update raises the loss and is surely worse than the server's gradient."""
        descents, better = oracle.fresh_descents([update, gradient], self.samples // 2)  # [p], by part of the samples
        lost = better - descents
        error = (lost.var(correction=0) / max(1, len(lost) - 1)).sqrt()
        return not (float(descents.mean()) >= 0 or float(lost.mean()) <= SURE * float(error))  # True for NaN


@dataclass(frozen=True, eq=False)
class Memory:
    """Decayed means of sketches. The signs of the sketches are a secret, which no worker can fit a gradient to."""

    seed: int  # of the signs
    steps: int
    counts: Tensor  # [m] steps at which each worker had a usable candidate
    errors: Tensor  # [m, k] of the workers
    choice: Tensor  # [k] error of the choice of a single step
    own: Tensor  # [k] error of the server's own gradient
    target: Tensor  # [k] g
    weights: Tensor  # [m + 2] of the workers, the choice and the server's own gradient, at the last step

    @classmethod
    def of(cls, state: Any, candidates: Tensor, halves: Tensor, k: int) -> "Memory":
        """What the rule returned as its state; a new one from None. Workers that are new have a count of 0."""
        m, d = candidates.shape
        if state is None:
            secret = hashlib.blake2b(halves.float().cpu().numpy().tobytes(), digest_size=8)  # the server's samples
            errors = candidates.new_zeros(m, min(k, d), dtype=working_dtype(candidates.dtype))
            weights = candidates.new_zeros(m + 2, dtype=torch.float64)
            weights[-1] = 1.0
            none, seed = torch.zeros_like(errors[0]), int.from_bytes(secret.digest(), "big")
            return cls(seed, 0, weights[:m].clone(), errors, none, none, none, weights)
        tensors = {name: value.to(candidates.device) for name, value in state.items() if isinstance(value, Tensor)}
        found: dict[str, Any] = {**state, **tensors}
        before = len(found["errors"])
        if before > m:
            raise ValueError(f"A memory of {before} workers does not fit {m}. Pass NaN for workers that left.")
        for name in ("counts", "errors", "weights"):
            joined = found[name].new_zeros(m - before, *found[name].shape[1:])
            found[name] = torch.cat([found[name][:before], joined, found[name][before:]])
        return cls(**found)

    def sketch(self, rows: Tensor) -> Tensor:
        """The sketches of rows [n, d] -> [n, k] in float64."""
        return sketch(rows, len(self.own), self.seed).double()

    def after(self, decay: float, usable: Tensor, errors: Tensor, *others: Tensor) -> "Memory":
        """With the errors of this step, of the choice and of the server, and g; the first ones count in full."""

        def mean(before: Tensor, now: Tensor, rate: float | Tensor) -> Tensor:
            return (before + rate * (now - before)).to(before.dtype)

        counts, steps = self.counts + usable, self.steps + 1
        rates = (1 - decay) / (1 - decay ** counts.clamp(min=1)) * usable
        rate = (1 - decay) / (1 - decay**steps)
        before = (self.choice, self.own, self.target)
        choice, own, target = (mean(one, now, rate) for one, now in zip(before, others, strict=True))
        errors = mean(self.errors, errors, rates[:, None])
        return Memory(self.seed, steps, counts, errors, choice, own, target, self.weights)

    def mixed(self, usable: Tensor, with_choice: bool) -> "Memory":
        """With the weights of this step.

        Zero is a column too: a shorter mixture has less noise, and is nearer to g^ for that. But it is only slower. So
        what zero gets goes to the weights of the last step, until the mixture is as long as the server's own gradient.
        """
        there = torch.cat([usable, torch.tensor([with_choice, True], device=usable.device)])
        errors = torch.cat([self.errors, self.choice[None], self.own[None]])[there].double()
        columns, least = errors + self.target, LEAST / len(usable)  # the decayed means
        length = columns[-1].norm()
        before = self.weights[there]
        before[-1] += 1 - before.sum()  # the weights of those that are not there
        found = nearest_mixture(torch.cat([errors, -self.target.double()[None]]))[:-1].to(errors.device)
        found = torch.where((found < least) | (columns.norm(dim=1) <= SHORT * length), 0, found)
        rest = (1 - found.sum()) * before
        room = (length - (found @ columns).norm()) / (rest @ columns).norm()
        found = found + room.nan_to_num(0).clamp(0, 1) * rest
        weights = torch.zeros_like(self.weights)
        weights[there] = torch.where(found < least, 0, found)
        return replace(self, weights=weights)
