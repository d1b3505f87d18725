"""Bounds on the progress of Zeno: those of the paper, and those that also hold for scores on a few samples.

f is the loss on one sample, F its mean over all data, f_r the mean over the server's n_r samples, g = grad F(x),
beta = 2 rho / lr^2, and v the update of Zeno at x:

    paper     E F(x - lr v) - F(x) <= -lr/2 |g|^2 + lr (b-q+1)(m-q) V / (m-b)^2 + (L+beta)/2 lr^2 G
    proven    E F(x - lr v) - F(x) <= -lr   |g|^2                               + (L+beta)/2 lr^2 G + V_r / 2(beta-D)

The paper's proof takes the expectation over f_r with the order of the candidates fixed, but f_r determines that order.
If the server scores on all data (f_r = F), this does no harm: the second line holds without its last term, and implies
the first. On a few samples the first line fails, by any amount a faulty worker chooses. docs/theory.md has such a case,
and the proof of the second line. Rely on the functions named `proven_...`; the others state the paper's bounds.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Assumptions:
    """Constants of the loss on a single sample, of the gradient v_i of a good worker, and of the scores.

    If workers have disjoint data, V and G hold for the data of every worker, also of the faulty ones.
    """

    smoothness: float  # L: f(y) - f(x) - <grad f(x), y - x> is at most L/2 |y - x|^2 ...
    curvature: float  # mu: ... and at least mu/2 |y - x|^2; below 0 if the loss is not convex
    variance: float  # V >= E |v_i - E v_i|^2
    second_moment: float  # G >= E |v_i|^2
    own_variance: float | None = None  # V_r >= E |grad f_r(x) - g|^2: one sample's over n_r; None: scores on all data
    curvature_gap: float | None = None  # D: f_r - F curves down by at most D/2 |y - x|^2; None: L - mu, always valid

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                least = -math.inf if field.name == "curvature" else 0.0
                _check(field.name, value, least, positive=field.name in ("smoothness", "second_moment"))
        found = f"curvature={self.curvature} with smoothness={self.smoothness}"
        _need(self.curvature <= self.smoothness, "curvature of at most smoothness", found)

    @property
    def gap(self) -> float:
        """D in use; 0 if the server scores on all data."""
        if self.own_variance is None:
            return 0.0
        return self.smoothness - self.curvature if self.curvature_gap is None else self.curvature_gap


@dataclass(frozen=True)
class Setting:
    """The workers, how many of them are faulty, and the parameters of Zeno."""

    workers: int  # m
    faulty: int  # q
    trim: int  # b
    lr: float  # gamma
    rho: float

    def __post_init__(self) -> None:
        _check_counts(self.workers, self.faulty, self.trim)
        _check("lr", self.lr, positive=True)
        _check("rho", self.rho)

    @property
    def beta(self) -> float:
        """rho in units that do not depend on lr: 2 rho / lr^2."""
        return 2 * self.rho / self.lr**2


class Recommendation(NamedTuple):
    """Parameters of `zeno.Zeno(trim=..., rho=...)`."""

    trim: int  # b
    rho: float


def smallest_rho(problem: Assumptions, lr: float) -> float:
    """The smallest rho that the theorem allows: max(0, -mu) lr^2 / 2.

    The paper requires more than that; its appendix at least that, and 0 if mu >= 0. The proof uses "at least", for any
    mu. Below it, the mean of two distant faulty candidates can do any harm, even if each of them lowers the loss.
    """
    _check("lr", lr, positive=True)
    return max(0.0, -problem.curvature) * lr**2 / 2


def corollary_lr(problem: Assumptions, steps: int) -> float:
    """The lr of the corollaries: 1 / (L sqrt(T))."""
    _check("steps", steps, 1, whole=True)
    return 1 / (problem.smoothness * math.sqrt(steps))


def error_floor(problem: Assumptions, workers: int, faulty: int, trim: int, disjoint: bool = False) -> float:
    """The limit of the bounds of Corollary 1, or 2 if `disjoint`, on the mean of |grad F|^2, for many steps.

    It decreases as m grows or b shrinks. It also decreases as q grows with b fixed: fewer good ones are left out.
    """
    _check_counts(workers, faulty, trim)
    m, q, b = workers, faulty, trim
    if disjoint:
        of_all = 4 * problem.variance / m + 4 * b * problem.second_moment / m
        return of_all + 2 * b**2 * (m - q) * problem.second_moment / (m**2 * (m - b))
    return 2 * (b - q + 1) * (m - q) * problem.variance / (m - b) ** 2


def decrease_bound(problem: Assumptions, setting: Setting, squared_gradient: float, disjoint: bool = False) -> float:
    """Theorem 1 as stated: an upper bound on E F(x - lr v) - F(x), where |grad F(x)|^2 is `squared_gradient`.

    It is true if the server scores on all data, and false in general: see `proven_decrease_bound`. `disjoint`: workers
    have disjoint data, F is the mean over all of it, and the server samples from all of it.
    """
    _check_rho(problem, setting)
    _check("squared_gradient", squared_gradient)
    small = setting.lr * problem.smoothness <= 1 + 1e-12
    _need(small, f"lr of at most 1 / smoothness = {1 / problem.smoothness:g}", f"lr={setting.lr}")
    floor = error_floor(problem, setting.workers, setting.faulty, setting.trim, disjoint)
    return -setting.lr / 2 * squared_gradient + setting.lr / 2 * floor + _step_term(problem, setting)


def average_gradient_bound(
    problem: Assumptions, setting: Setting, steps: int, excess: float, disjoint: bool = False
) -> float:
    """Corollary 1 as stated, or 2 if `disjoint`: an upper bound on the mean of E |grad F(x_t)|^2 over T steps.

    `excess` is F(x_0) - min F. The paper uses `corollary_lr`; the proof is the same for any other lr <= 1/L.
    """
    _check("steps", steps, 1, whole=True)
    _check("excess", excess)
    return 2 * (excess / steps + decrease_bound(problem, setting, 0.0, disjoint)) / setting.lr


def proven_decrease_bound(
    problem: Assumptions, setting: Setting, squared_gradient: float, disjoint: bool = False
) -> float:
    """Holds in place of Theorem 1: for any lr, and even if faulty workers know the server's samples in advance."""
    _check_rho(problem, setting)
    _check("squared_gradient", squared_gradient)
    rest = _step_term(problem, setting) + _score_term(problem, setting)
    if disjoint:
        return setting.lr / 2 * (_missing_data_term(problem, setting.workers, setting.faulty) - squared_gradient) + rest
    return -setting.lr * squared_gradient + rest


def proven_average_gradient_bound(
    problem: Assumptions, setting: Setting, steps: int, excess: float, disjoint: bool = False
) -> float:
    """Holds in place of the corollaries, for any lr; G and V_r are the largest over the steps."""
    _check("steps", steps, 1, whole=True)
    _check("excess", excess)
    times = 2 if disjoint else 1
    return times * (excess / steps + proven_decrease_bound(problem, setting, 0.0, disjoint)) / setting.lr


def proven_floor(problem: Assumptions, workers: int, faulty: int, disjoint: bool = False) -> float:
    """The limit of the proven bound on the mean of |grad F|^2 for many steps with a small lr and the recommended rho.

    sqrt(V_r G): it decreases with more server samples, not with more workers. For V_r >= G it promises nothing.
    """
    _check_counts(workers, faulty, faulty)
    noise = math.sqrt((problem.own_variance or 0.0) * problem.second_moment)
    return _missing_data_term(problem, workers, faulty) + 2 * noise if disjoint else noise


def recommend(problem: Assumptions, workers: int, faulty: int, lr: float) -> Recommendation:
    """The trim and rho with the best bound, if at most `faulty` workers are faulty.

    trim equals `faulty`, which minimizes the paper's floor; the proven bound does not depend on it. If the server
    scores on all data, rho is the smallest that the theorem allows. On a few samples it minimizes the proven bound: a
    larger rho penalizes large good candidates, and with a smaller one large bad candidates can score high by chance.
    """
    _check_counts(workers, faulty, faulty)
    best = problem.gap * lr**2 / 2 + lr / 2 * math.sqrt((problem.own_variance or 0.0) / problem.second_moment)
    return Recommendation(trim=faulty, rho=max(smallest_rho(problem, lr), best))


def _step_term(problem: Assumptions, setting: Setting) -> float:
    return (problem.smoothness + setting.beta) * setting.lr**2 * problem.second_moment / 2


def _score_term(problem: Assumptions, setting: Setting) -> float:
    if not problem.own_variance and setting.beta >= problem.gap * (1 - 1e-12):
        return 0.0
    least = f"rho above curvature_gap * lr^2 / 2 = {problem.gap * setting.lr**2 / 2:g}"
    _need(setting.beta > problem.gap, least, f"rho={setting.rho}. Raise rho, or score on all data")
    return (problem.own_variance or 0.0) / (2 * (setting.beta - problem.gap))


def _missing_data_term(problem: Assumptions, workers: int, faulty: int) -> float:
    """Squared distance of the mean gradient on the good workers' data from that on all data: at most 4 G (q/m)^2."""
    return 4 * problem.second_moment * (faulty / workers) ** 2


def _check_rho(problem: Assumptions, setting: Setting) -> None:
    least = smallest_rho(problem, setting.lr)
    enough = setting.rho >= least * (1 - 1e-12)  # rho = beta * lr^2 / 2 may have been rounded
    _need(enough, f"rho of at least max(0, -curvature) * lr^2 / 2 = {least:g}", f"rho={setting.rho}")


def _check_counts(workers: int, faulty: int, trim: int) -> None:
    _check("workers", workers, 1, whole=True)
    _check("faulty", faulty, whole=True)
    _check("trim", trim, whole=True)
    _need(trim >= faulty, "trim of at least faulty", f"trim={trim} with faulty={faulty}")
    _need(trim < workers, "trim below workers", f"trim={trim} with workers={workers}")


def _check(name: str, value: Any, least: float = 0.0, positive: bool = False, whole: bool = False) -> None:
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and math.isfinite(value)
    at_least = f" of at least {least:g}" if math.isfinite(least) else ""
    text = f"{name} as a {'whole' if whole else 'finite'} number{at_least}"
    _need(number and value >= least, text, f"{name}={value!r}")
    _need(not positive or value != 0, f"{name} above 0", f"{name}={value!r}")


def _need(holds: bool, condition: str, found: str) -> None:
    if not holds:
        raise ValueError(f"The theorem needs {condition}. Found {found}.")
