"""What can be promised of Zeno: the bounds of the paper, and those that hold for scores on a few samples too.

f is the loss on one sample, F its mean over all data, f_r the mean over the server's own n_r samples, g = grad F(x),
beta = 2 rho / lr^2, and v the update that Zeno makes at x:

    paper     E F(x - lr v) - F(x) <= -lr/2 |g|^2 + lr (b-q+1)(m-q) V / (m-b)^2 + (L+beta)/2 lr^2 G
    proven    E F(x - lr v) - F(x) <= -lr   |g|^2                               + (L+beta)/2 lr^2 G + V_r / 2(beta-D)

The paper's proof takes the expectation over f_r with the sorted candidates held fixed. But f_r did the sorting. Where
the server scores on all data, f_r = F, that does no harm: the second line holds without its last term, and implies the
first. On a few samples the first line fails, by as much as a faulty worker likes. docs/theory.md has such a case, and
the proof of the second line. Rely on the functions called `proven_...`; the others are the paper's, as stated.
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True)
class Assumptions:
    """What is known of the loss on every single sample, of the gradient v_i of a good worker, and of the scores.

    Where workers have disjoint data, V and G are for the data of every worker, that of the faulty ones included.
    """

    smoothness: float  # L: f(y) - f(x) - <grad f(x), y - x> is at most L/2 |y - x|^2 ...
    curvature: float  # mu: ... and at least mu/2 |y - x|^2; below 0 where the loss is not convex
    variance: float  # V >= E |v_i - E v_i|^2
    second_moment: float  # G >= E |v_i|^2
    own_variance: float | None = None  # V_r >= E |grad f_r(x) - g|^2: one sample's over n_r; None: scores on all data
    curvature_gap: float | None = None  # D: f_r - F bends down by D/2 |y - x|^2 at most; None: L - mu, always enough

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                _check_number(field.name, value, least=-math.inf if field.name == "curvature" else 0.0)
        for name in ("smoothness", "second_moment"):
            if getattr(self, name) == 0:
                raise ValueError(f"The theorem needs {name} above 0. Found {name}=0.")
        if self.curvature > self.smoothness:
            raise ValueError(
                "The theorem needs curvature of at most smoothness. "
                f"Found curvature={self.curvature} with smoothness={self.smoothness}."
            )

    @property
    def gap(self) -> float:
        """D in use: nothing where scores are on all data."""
        if self.own_variance is None:
            return 0.0
        return self.smoothness - self.curvature if self.curvature_gap is None else self.curvature_gap


@dataclass(frozen=True)
class Setting:
    """The workers, how many of them are faulty, and how Zeno is called."""

    workers: int  # m
    faulty: int  # q
    trim: int  # b
    lr: float  # gamma
    rho: float

    def __post_init__(self) -> None:
        _check_counts(self.workers, self.faulty, self.trim)
        _check_lr(self.lr)
        _check_number("rho", self.rho)

    @property
    def beta(self) -> float:
        """rho in units that do not depend on lr: 2 rho / lr^2."""
        return 2 * self.rho / self.lr**2


class Recommendation(NamedTuple):
    """How to call Zeno: `zeno.Zeno(trim=..., rho=...)`."""

    trim: int  # b
    rho: float


def smallest_rho(problem: Assumptions, lr: float) -> float:
    """The smallest rho that the theorem admits: max(0, -mu) lr^2 / 2.

    The paper asks for more than that; its appendix for at least that, and for 0 if mu >= 0. At least that is what the
    proof uses, for any mu. Below it, two faulty candidates far apart, each of them a descent, have a middle that does
    any harm.
    """
    _check_lr(lr)
    return max(0.0, -problem.curvature) * lr**2 / 2


def corollary_lr(problem: Assumptions, steps: int) -> float:
    """The lr of the corollaries: 1 / (L sqrt(T))."""
    _check_count("steps", steps, 1)
    return 1 / (problem.smoothness * math.sqrt(steps))


def error_floor(problem: Assumptions, workers: int, faulty: int, trim: int, disjoint: bool = False) -> float:
    """What the bounds of Corollary 1, or 2 if `disjoint`, leave of the mean of |grad F|^2 after any number of steps.

    It falls as m grows or b shrinks. It also falls as q grows while b stays: the proof pays for the good ones left out.
    """
    _check_counts(workers, faulty, trim)
    m, q, b = workers, faulty, trim
    if disjoint:
        of_all = 4 * problem.variance / m + 4 * b * problem.second_moment / m
        return of_all + 2 * b**2 * (m - q) * problem.second_moment / (m**2 * (m - b))
    return 2 * (b - q + 1) * (m - q) * problem.variance / (m - b) ** 2


def decrease_bound(problem: Assumptions, setting: Setting, squared_gradient: float, disjoint: bool = False) -> float:
    """Theorem 1 as stated: at most this is E F(x - lr v) - F(x), where |grad F(x)|^2 is `squared_gradient`.

    It is true where the server scores on all data, and false in general: see `proven_decrease_bound`. `disjoint`: each
    worker has data of its own, F is the mean over all workers' data, and the server samples from all.
    """
    _check_rho(problem, setting)
    _check_number("squared_gradient", squared_gradient)
    if setting.lr * problem.smoothness > 1 + 1e-12:
        raise ValueError(
            f"The theorem needs lr of at most 1 / smoothness = {1 / problem.smoothness:g}. Found lr={setting.lr}."
        )
    floor = error_floor(problem, setting.workers, setting.faulty, setting.trim, disjoint)
    return -setting.lr / 2 * squared_gradient + setting.lr / 2 * floor + _of_the_step(problem, setting)


def average_gradient_bound(
    problem: Assumptions, setting: Setting, steps: int, excess: float, disjoint: bool = False
) -> float:
    """Corollary 1 as stated, or 2 if `disjoint`: at most this is the mean of E |grad F(x_t)|^2 over T steps.

    `excess` is F(x_0) - min F. The paper takes `corollary_lr`; for any other lr <= 1/L it follows in the same way.
    """
    _check_count("steps", steps, 1)
    _check_number("excess", excess)
    return 2 * (excess / steps + decrease_bound(problem, setting, 0.0, disjoint)) / setting.lr


def proven_decrease_bound(
    problem: Assumptions, setting: Setting, squared_gradient: float, disjoint: bool = False
) -> float:
    """What holds instead of Theorem 1: for any lr, and even if faulty workers know the server's samples beforehand."""
    _check_rho(problem, setting)
    _check_number("squared_gradient", squared_gradient)
    rest = _of_the_step(problem, setting) + _of_the_scores(problem, setting)
    if disjoint:
        return setting.lr / 2 * (_of_the_missing(problem, setting.workers, setting.faulty) - squared_gradient) + rest
    return -setting.lr * squared_gradient + rest


def proven_average_gradient_bound(
    problem: Assumptions, setting: Setting, steps: int, excess: float, disjoint: bool = False
) -> float:
    """What holds instead of the corollaries, for any lr: G and V_r are those of the steps where they are largest."""
    _check_count("steps", steps, 1)
    _check_number("excess", excess)
    times = 2 if disjoint else 1
    return times * (excess / steps + proven_decrease_bound(problem, setting, 0.0, disjoint)) / setting.lr


def proven_floor(problem: Assumptions, workers: int, faulty: int, disjoint: bool = False) -> float:
    """What is left of the mean of |grad F|^2 after many steps of a small lr, with the rho of `recommend`.

    sqrt(V_r G): more samples of the server's own lower it, more workers do not. From V_r = G on it promises nothing.
    """
    _check_counts(workers, faulty, faulty)
    noise = math.sqrt((problem.own_variance or 0.0) * problem.second_moment)
    return _of_the_missing(problem, workers, faulty) + 2 * noise if disjoint else noise


def recommend(problem: Assumptions, workers: int, faulty: int, lr: float) -> Recommendation:
    """The trim and rho with the best bound, where at most `faulty` of the workers are feared to be faulty.

    trim is no more than that, which makes the paper's floor smallest; the proven bound does not depend on it. rho is
    the smallest that the theorem admits if the server scores on all data. On a few samples it makes the proven bound
    smallest: a larger one shuns large candidates, good ones too; a smaller one lets chance promote large bad ones.
    """
    _check_counts(workers, faulty, faulty)
    best = problem.gap * lr**2 / 2 + lr / 2 * math.sqrt((problem.own_variance or 0.0) / problem.second_moment)
    return Recommendation(trim=faulty, rho=max(smallest_rho(problem, lr), best))


def _of_the_step(problem: Assumptions, setting: Setting) -> float:
    return (problem.smoothness + setting.beta) * setting.lr**2 * problem.second_moment / 2


def _of_the_scores(problem: Assumptions, setting: Setting) -> float:
    if problem.own_variance is None:
        return 0.0
    if problem.own_variance == 0 and setting.beta >= problem.gap * (1 - 1e-12):
        return 0.0
    if setting.beta <= problem.gap:
        raise ValueError(
            f"Scores on a few samples need rho above curvature_gap * lr^2 / 2 = {problem.gap * setting.lr**2 / 2:g}. "
            f"Found rho={setting.rho}. Raise rho, or score on all data."
        )
    return problem.own_variance / (2 * (setting.beta - problem.gap))


def _of_the_missing(problem: Assumptions, workers: int, faulty: int) -> float:
    """At most so far, squared, is the mean gradient of the good workers' data from that of all: 4 G (q/m)^2."""
    return 4 * problem.second_moment * (faulty / workers) ** 2


def _check_rho(problem: Assumptions, setting: Setting) -> None:
    least = smallest_rho(problem, setting.lr)
    if setting.rho < least * (1 - 1e-12):  # rho = beta * lr^2 / 2 may have been rounded
        raise ValueError(
            f"The theorem needs rho of at least max(0, -curvature) * lr^2 / 2 = {least:g}. Found rho={setting.rho}."
        )


def _check_counts(workers: int, faulty: int, trim: int) -> None:
    _check_count("workers", workers, 1)
    _check_count("faulty", faulty, 0)
    _check_count("trim", trim, 0)
    if trim < faulty:
        raise ValueError(f"The theorem needs trim of at least faulty. Found trim={trim} with faulty={faulty}.")
    if trim >= workers:
        raise ValueError(f"The theorem needs trim below workers. Found trim={trim} with workers={workers}.")


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"The theorem needs {name} as a whole number of at least {least}. Found {name}={value!r}.")


def _check_number(name: str, value: object, least: float = 0.0) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        at_least = f" of at least {least:g}" if math.isfinite(least) else ""
        raise ValueError(f"The theorem needs {name} as a finite number{at_least}. Found {name}={value!r}.")


def _check_lr(lr: float) -> None:
    _check_number("lr", lr)
    if lr == 0:
        raise ValueError("The theorem needs lr above 0. Found lr=0.")
