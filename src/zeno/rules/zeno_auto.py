"""ZenoAuto: Zeno without tuning. The update is the mixture of the candidates that is nearest to the true gradient.

The server's own gradient g, on samples that it never trains on, is noisy. But it is right on average, and its noise is
independent of the workers. So the squared distance of any mixture from g estimates, up to a constant, its squared
distance from the true gradient. Decayed means over the steps average the noise out, while a bias stays. They are in
units of the noise of each step, so that a few steps with large gradients do not outweigh all others:

    e_i    = decayed mean of (u_i - g) / |o - g|
    E(w)   = | sum_i w_i e_i |^2 + (1 - memory) | sum_i w_i (u_i - g) |^2 / |o - g|^2    for  w >= 0, sum(w) = 1
    w      = argmin E(w), averaged over the last steps; or equal weights, for all workers that agree with it
    update = (1 - s) sum_i w_i u_i + s o

The second term is the error at this step alone, which the means hide, as of a worker that turns. Here, o is the
server's own gradient on the other half of its samples. It makes every worker dispensable: it is one of the columns that
w mixes, and it has the share s for as long as it is not known who is right. The bias of the mixture may be as large as
the distance P between it and the workers that may be right; the own gradient has no bias, but the variance V. The
error of (1 - s) mixture + s o is least for

    s = P / (P + V)

Without faults, P is 0 up to noise. One more column is the choice of this step alone, which helps where memory cannot,
when other workers are faulty at every step: it is FLTrust's update by the server's own gradient.

Every sample of the server belongs to one half for good: a model that has learned the samples of one half by heart is
still judged by those of the other. docs/zeno-auto.md has the reasons, a picture and the guarantee.

Shapes: m workers, d parameters, k numbers in a sketch. Columns are the m workers, the choice, the own gradient, zero.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zeno.rules.fltrust import cosines_of, trust
from zeno.rules.linalg.passes import LARGEST, weighted_sum, working_dtype
from zeno.rules.linalg.simplex import Mixtures
from zeno.rules.linalg.sketch import sketch
from zeno.rules.parameters import AT_LEAST_1, NON_NEGATIVE, Requirement
from zeno.rules.rule import Aggregate, Change, Oracle, PositiveCount, Rows, Rule, likeness_of

WEIGHT_DECAY = 0.9  # decay of the weights, from step to step
MARGIN = 0.2  # share: squared errors that exceed the least by less count as equal, and smaller cosines as noise
CHANCE = 2.0  # times what noise explains: a larger squared distance is no chance
REPEATED = 4.0  # times the share of the server's noise that repeats: by so much the least error may be too low
SMALLEST = 0.02  # of an equal weight: what is below belongs to large errors, and risks more than it adds
SHORT = 1e-3  # of the length of the server's gradient: shorter candidates and noise count as this long, or as nothing
DEFECT = 100.0  # times what is usual: a longer candidate is a defect of this step, as NaN is

CHOICE, OWN, ZERO = -3, -2, -1  # the columns after the workers
WORKERS = slice(None, CHOICE)
BY_COLUMN = ("counts", "errors", "squares", "weights")  # of a memory
AT_LEAST_2 = Requirement("a whole number of at least 2", lambda value: AT_LEAST_1.holds(value) and value > 1, "samples")
BELOW_1 = Requirement("a number of at least 0 and below 1", lambda value: NON_NEGATIVE.holds(value) and value < 1)


@dataclass(frozen=True)
class ZenoAuto(Rule):
    """Mixture of the workers that is nearest to the true gradient; no tuning.

    Tolerates any number of faulty workers: if all are faulty, the server trains on its own gradient. Uses `samples` of
    the server per step. `memory` is the decay of the mean errors from step to step, `sketch` the number of values by
    which a candidate is remembered.
    """

    samples: Annotated[int, AT_LEAST_2] = 64
    memory: Annotated[float, BELOW_1] = 0.98
    sketch: PositiveCount = 16_384

    def for_workers(self, state: Any, change: Change) -> object:
        if state is None:
            return None
        state = Memory.checked(state)
        columns = {name: torch.cat([change(state[name][WORKERS], 0.0), state[name][CHOICE:]]) for name in BY_COLUMN}
        return {**state, **columns}

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
        compared = Comparison.of(memory, self.memory, sketches, rows.require_finite(memory.sketch(halves)))
        weights, memory = compared.weights()  # [m + 1]
        of_workers, own = factors * weights[:-1], float(weights[-1])
        update = weighted_sum(candidates, of_workers)
        update.add_(own_gradient(halves, own), alpha=own)
        return Aggregate(update, of_workers, compared.scores, vars(memory), own, likeness=compared.likeness)


def own_gradient(halves: Tensor, weight: float) -> Tensor:
    """The server's own gradient, for this weight: the larger it is, the less is to be judged, and both halves train."""
    return torch.lerp(halves[0], halves[1], weight / 2)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidates of a step beside the server's two gradients, by sketches of k numbers."""

    memory: "Memory"  # with the errors of this step, and the weights of the last
    decay: float
    usable: Tensor  # [m]
    sketches: Tensor  # [m, k] in units of the server's noise, 0 where not finite
    choice: Tensor  # [m + 1] FLTrust's weights of the workers and of o: factors, that need not sum to 1
    halves: Tensor  # [2, k] in the same units
    products: Tensor  # [m + 3, m + 3] of the errors of this step

    @classmethod
    def of(cls, memory: "Memory", decay: float, sketches: Tensor, halves: Tensor) -> "Comparison":
        """Compares the candidates by their sketches [m, k].

        Candidates that are not finite, or far longer than usual, are unusable.
        """
        says_nothing = not bool(halves.any())
        if not says_nothing:
            memory = replace(memory, unit=_unit(halves))
        sketches, halves = sketches / memory.unit, halves / memory.unit
        lengths = sketches.square().sum(dim=1).sqrt()
        usual = torch.maximum(halves.square().sum(dim=1).max().sqrt(), memory.usual(decay)[WORKERS])
        longest = DEFECT * usual if bool(usual.any()) else LARGEST  # nothing is known yet
        usable = lengths <= longest  # False for NaN
        sketches = torch.where(lengths.isfinite()[:, None], sketches, 0)
        o, g = halves
        workers = torch.where(usable[:, None], sketches, 0)
        choice = _choice(torch.cat([workers, o[None]]))
        of_choice = choice[:-1] @ workers + choice[-1] * o
        errors = torch.cat([workers, torch.stack([of_choice, o, 0 * o])]) - g
        there = torch.cat([usable, usable.new_ones(3)])
        products = torch.where(there[:, None] & there, errors @ errors.T, 0)
        if says_nothing:  # only the memory judges
            products = torch.zeros_like(products)
        else:
            memory = memory.after(decay, there, errors, products)
        return cls(memory, decay, usable, sketches, choice, halves, products)

    @property
    def scores(self) -> Tensor:
        """[m] minus the squared distance of each candidate from g, in units of the server's noise."""
        return torch.where(self.usable, -(self.sketches - self.halves[1]).square().sum(dim=1), -torch.inf)

    @property
    def likeness(self) -> Tensor:
        """[2, m] the candidates beside the mean of both gradients; see `Aggregate`."""
        both = self.halves.mean(dim=0)
        return likeness_of(self.sketches @ both, self.sketches.square().sum(dim=1), both.square().sum())

    def weights(self, among: Tensor | None = None) -> tuple[Tensor, "Memory"]:
        """The weights of the workers, by default all, and of the server [m + 1], and the memory with them."""
        workers = self.usable if among is None else self.usable & among
        means, noise = self.memory.products(), self.memory.noise()
        w, memory = self._mixture(means, noise, workers)
        s = self._own_share(means, noise, workers, w[WORKERS])
        w = (1 - s) * w
        of_workers = w[WORKERS] + w[CHOICE] * self.choice[:-1]
        of_server = w[OWN] + w[CHOICE] * self.choice[-1] + s
        return torch.cat([of_workers, of_server[None]]), memory

    def _mixture(self, means: Tensor, noise: Tensor, workers: Tensor) -> tuple[Tensor, "Memory"]:
        """w [m + 3] from the products of the mean errors, and the memory with it: of workers, else of any columns."""
        now = (1 - self.decay) * self.products
        judge = Judge(means + now)  # E(w) = w' (means + now) w
        there = torch.cat([workers, workers.new_ones(3)]) & (judge.lengths > SHORT * judge.lengths[OWN])
        there[OWN], there[ZERO] = True, False
        of_any, of_workers = there.clone(), there.clone()
        of_workers[CHOICE:] = False
        chance = CHANCE * (noise[OWN, 0] + now[OWN, OWN])
        if bool(of_workers.any()) and judge.error(judge.nearest(of_workers)) > judge.of_zero + chance:
            of_any[WORKERS] = of_workers[WORKERS] = False  # they go backwards: even zero is nearer to g
        found = self._of_workers(judge, means, noise, of_workers, there)
        return self._of_any(judge, of_any, there) if found is None else found

    def _of_workers(
        self, judge: "Judge", means: Tensor, noise: Tensor, of_workers: Tensor, there: Tensor
    ) -> tuple[Tensor, "Memory"] | None:
        """The nearest mixture of workers, if it helps: even where workers agree, else averaged over the steps."""
        last = self.memory.weights
        carried = bool(last[WORKERS].sum() >= last[CHOICE:].sum())  # by workers: then they may be less near to g
        repeated = REPEATED * self.memory.repeated if carried else 0.0  # as the nearest fits noise that repeats
        margin, least = max(MARGIN, repeated), judge.error(judge.nearest(there))

        def helps(weights: Tensor, excess: float) -> bool:
            """Whether workers with these weights go along g, and E is at most 1 + excess times the least."""
            return judge.goes_along(weights, margin) and judge.error(weights) <= (1 + excess) * least

        nearest = judge.longest(of_workers)
        if not helps(nearest, repeated):
            return None
        remembered, averaged = self._averaged(nearest, there)
        even = self._even(means, noise, of_workers, nearest)
        for weights, excess in ((even, repeated), (averaged, margin)):
            if helps(weights, excess):
                return weights, replace(self.memory, weights=remembered)
        return self._of_this_step(nearest, there)

    def _of_any(self, judge: "Judge", of_any: Tensor, there: Tensor) -> tuple[Tensor, "Memory"]:
        """The nearest mixture of these columns, averaged over the steps as long as that is about as near."""
        nearest = judge.longest(of_any)
        remembered, averaged = self._averaged(nearest, there)
        if judge.error(averaged) <= (1 + MARGIN) * judge.error(nearest):
            return averaged, replace(self.memory, weights=remembered)
        return self._of_this_step(nearest, there)

    def _of_this_step(self, weights: Tensor, there: Tensor) -> tuple[Tensor, "Memory"]:
        """The weights without those of the steps before, which are forgotten."""
        return weights, replace(self.memory, weights=torch.where(there, weights, self.memory.weights))

    def _averaged(self, weights: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """The weights averaged over the last steps: to remember, and of the columns that are there."""
        last = self.memory.weights
        found = torch.where(there, torch.lerp(weights, last, WEIGHT_DECAY if bool(last.any()) else 0.0), last)
        used = _cleaned(torch.where(there, found, 0))
        return found, used * (weights.sum() / used.sum())

    def _even(self, means: Tensor, noise: Tensor, there: Tensor, weights: Tensor) -> Tensor:
        """Equal weights for the workers that agree with these weights up to noise; all 0 if there are none.

        A worker that is erratic agrees with everybody. Its noise would only harm.
        """
        agree, of_distance = there.clone(), noise[WORKERS, 1]
        agree[WORKERS] &= _apart(means, weights[WORKERS]) <= CHANCE * of_distance
        if bool(agree.any()):
            agree[WORKERS] &= of_distance <= CHANCE * torch.maximum(of_distance[agree[WORKERS]].median(), noise[OWN, 0])
        return agree.double() / agree.sum().clamp(min=1)

    def _own_share(self, means: Tensor, noise: Tensor, workers: Tensor, weights: Tensor) -> float:
        """s: the share of the own gradient for want of knowledge who is right, from the weights [m] of the workers.

        P is a mean over the workers, half by their weights, half by how precisely it is known of each: of the squared
        distance between a worker and their mixture beyond what noise explains, or of 0 if it is known to be wrong.
        """
        of_error, of_distance = noise[WORKERS].T  # what noise explains of each
        right = workers & (means.diagonal()[WORKERS] <= CHANCE * of_error)
        if not bool(weights.any()) or not bool(right.any()):
            return 0.0
        # The standard error of such a squared distance grows with the noise that it contains.
        precision = torch.where(workers, 1 / of_error.clamp(min=1e-100).square(), 0)
        shares = torch.where(right, weights / weights.sum() + precision / precision.sum(), 0)
        bias = max(0.0, float(shares @ (_apart(means, weights) - of_distance)) / 2)  # P
        # V: of a decayed mean of gradients on both halves, each of which has the variance 1 / 2, as |o - g| is 1.
        variance = (1 - self.decay) / (1 + self.decay) / 4
        return bias / (bias + variance)


class Judge:
    """How near mixtures w [m + 3] of the columns are to g, and where they go, from the products of their errors."""

    def __init__(self, products: Tensor) -> None:
        mixtures, squares, with_zero = Mixtures(products), products.diagonal(), products[ZERO]
        self.error, self.nearest = mixtures.error, mixtures.nearest  # E(w), and the w of some columns with the least
        # The error of zero is -g. So a column u is its error less that of zero.
        self.of_zero = squares[ZERO]  # |g|^2, the error of no step at all
        self.along = self.of_zero - with_zero  # [m + 3] <u, g>
        self.lengths = (squares - 2 * with_zero + self.of_zero).clamp(min=0).sqrt()  # [m + 3] |u|

    def goes_along(self, weights: Tensor, margin: float) -> bool:
        """Whether <u, g> is at least a fifth of what <o, g> is beyond noise, which may be `margin` times |o| |g|.

        Noise may hide that o and g agree. Then u may even go backwards, but only a little.
        """
        most = self.lengths[OWN] * self.of_zero.sqrt()  # |o| |g|, which <o, g> cannot exceed
        least = MARGIN * torch.maximum(self.along[OWN] - margin * most, -MARGIN * most)
        return bool(weights.any()) and bool(weights @ self.along >= least)

    def longest(self, there: Tensor) -> Tensor:
        """The nearest mixture of the columns that are there, beside zero.

        A shorter mixture has less noise, and is nearer to g for that, but it is only slower. So zero takes part, and
        what it gets is for the others, until the mixture is as long as the own gradient. If zero gets all, the own
        gradient does, or nobody if it is not among the columns.
        """
        with_zero = there.clone()
        with_zero[ZERO] = True
        found = torch.where(there, _cleaned(self.nearest(with_zero)), 0)
        if not bool(found.any()):
            found[OWN] = float(there[OWN])
            return found
        from_zero = found.clone()
        from_zero[ZERO] = -found.sum()
        longer = self.lengths[OWN] / self.error(from_zero) ** 0.5  # the error is not 0: see simplex.ROUNDING
        return found * torch.minimum(longer.clamp(min=1), 1 / found.sum())


def _apart(products: Tensor, weights: Tensor) -> Tensor:
    """[m] the squared distance of each worker from the mixture with weights [m], from the products [m + 3, m + 3]."""
    products, mixture = products[WORKERS, WORKERS], weights / weights.sum()
    apart = torch.eye(len(mixture), dtype=products.dtype, device=products.device) - mixture  # [m, m]
    return ((apart @ products) * apart).sum(dim=1).clamp(min=0)  # rounding errors, where large ones cancel


def _unit(halves: Tensor) -> Tensor:
    """The distance between the server's two gradients [2, k]; of equal ones, a small part of their length."""
    return torch.maximum((halves[0] - halves[1]).norm(), SHORT * halves.norm())


def _choice(columns: Tensor) -> Tensor:
    """FLTrust's weights [m + 1] by the last of the columns [m + 1, k], which is the server's and takes part."""
    norms = columns.norm(dim=1)
    cosines = cosines_of(columns @ columns[-1], norms, norms[-1])
    return trust(torch.where(norms > SHORT * norms[-1], cosines, 0), norms, norms[-1])


def _cleaned(weights: Tensor) -> Tensor:
    """Without weights far below an equal one, as columns with large errors have; the others take their share."""
    found = torch.where(weights < SMALLEST / len(weights) * weights.sum(), 0, weights)
    return found * (weights.sum() / found.sum())


@dataclass(frozen=True, eq=False)
class Memory:
    """Decayed means of sketches. The signs of the sketches are a secret, which no worker can fit a gradient to."""

    seed: int  # of the signs
    counts: Tensor  # [m + 3] decayed number of steps at which each column was there
    errors: Tensor  # [m + 3, k] decayed means of u - g
    squares: Tensor  # [m + 3, 2] decayed sums of squares at single steps: of the error, of the way to the mixture
    weights: Tensor  # [m + 3] averaged over the last steps
    overlap: Tensor  # [2] decayed sums: the squared cosine of o - g with its mean before, and 1
    unit: Tensor  # the noise of the server at the last step at which its gradients were not 0

    @classmethod
    def new(cls, m: int, k: int, seed: int, like: Tensor) -> "Memory":
        """Of no step, for m workers; on the device of `like`."""
        counts = like.new_zeros(m + 3, dtype=torch.float64)
        errors = like.new_zeros(m + 3, k, dtype=working_dtype(like.dtype))
        of_two = counts.new_zeros(m + 3, 2)
        return cls(seed, counts, errors, of_two, counts.clone(), counts.new_zeros(2), counts.new_ones(()))

    @classmethod
    def of(cls, state: Any, candidates: Tensor, halves: Tensor, k: int) -> "Memory":
        """What the rule returned as its state; a new one from None. Workers that are new have a count of 0."""
        m, d = candidates.shape
        if state is None:
            secret = hashlib.blake2b(halves.float().cpu().numpy().tobytes(), digest_size=8)  # the server's samples
            return cls.new(m, min(k, d), int.from_bytes(secret.digest(), "big"), candidates)
        state = cls.checked(state)
        tensors = {name: value.to(candidates.device) for name, value in state.items() if isinstance(value, Tensor)}
        found: dict[str, Any] = {**state, **tensors}
        before = len(found["errors"]) + CHOICE
        if before > m:
            raise ValueError(f"A memory of {before} workers does not fit {m}. Pass NaN for workers that left.")
        for name in BY_COLUMN:
            joined = found[name].new_zeros(m - before, *found[name].shape[1:])
            found[name] = torch.cat([found[name][WORKERS], joined, found[name][CHOICE:]])
        return cls(**found)

    @classmethod
    def checked(cls, state: Any) -> dict[str, Any]:
        """A state that this version of the rule returned; raises ValueError for any other."""
        if isinstance(state, dict) and set(state) == {one.name for one in fields(cls)}:
            return state
        raise ValueError("The state of ZenoAuto is that of another version of zeno. Start without a state.")

    def sketch(self, rows: Tensor) -> Tensor:
        """The sketches of rows [n, d] -> [n, k] in float64."""
        return sketch(rows, self.errors.shape[1], self.seed).double()

    def after(self, decay: float, there: Tensor, errors: Tensor, products: Tensor) -> "Memory":
        """With the errors [m + 3, k] of the columns that are there at this step, and their products."""
        decays = torch.where(there, decay, torch.ones_like(self.counts))
        counts = decays * self.counts + there
        rates = (there / counts.clamp(min=1))[:, None]
        # The mixture is that of the steps before, which this step's noise is independent of.
        last, squared = self.weights[WORKERS] * there[WORKERS], products.diagonal()
        apart = _apart(products, last) if bool(last.any()) else squared[WORKERS]
        squares = torch.stack([squared, torch.cat([apart, apart.new_zeros(3)])], dim=1)
        return replace(
            self,
            counts=counts,
            errors=(self.errors + rates * (errors - self.errors)).to(self.errors),
            squares=decays[:, None] ** 2 * self.squares + torch.where(there[:, None], squares, 0),
            overlap=decay * self.overlap + self._overlap(errors[OWN]),
        )

    def _overlap(self, now: Tensor) -> Tensor:
        """[2] the squared cosine of o - g at this step [k] with its mean before, and 1; 0 if it has no direction."""
        before = self.errors[OWN].to(now)
        cosine = (now @ before).square() / (now.square().sum() * before.square().sum())  # NaN at the first step
        found = torch.stack([cosine, torch.ones_like(cosine)]).to(self.overlap)
        return torch.where(cosine.isfinite(), found, 0)

    def products(self) -> Tensor:
        """[m + 3, m + 3] of the mean errors."""
        errors = self.errors.double()
        return errors @ errors.T

    def noise(self) -> Tensor:
        """[m + 3, 2] what noise explains of the squared mean error, and of the squared distance from the mixture."""
        return self.squares / self.counts.clamp(min=1).square()[:, None]

    def usual(self, decay: float) -> Tensor:
        """[m + 3] the root of the mean squared error at single steps, at most 1 / SHORT; 0 of no step."""
        weight = self.counts * (2 - (1 - decay) * self.counts) / (1 + decay)  # of the sum: its decay is that squared
        return torch.where(weight > 0, self.squares[:, 0] / weight, 0).sqrt().clamp(max=1 / SHORT)

    @property
    def repeated(self) -> float:
        """The share of the server's noise that is the same at each step, as with few samples: 0 to 1."""
        return float(self.overlap[0] / self.overlap[1].clamp(min=1))
