"""What the paper says of its figures, as checks on the curves that came out here.

The words of the paper leave open how much is much. What is taken for what is fixed below, is the same at every scale,
and is never loosened for a result. A claim that does not hold is shown as failing, with the likely reason.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from zeno.studies.reproduction.figures import BASELINES, WITHOUT_FAULTS, Figure
from zeno.studies.reproduction.reproduce import Curve
from zeno.studies.reproduction.scales import Scale, key

END = 0.2  # share of the evaluations, the last ones, that a curve's end is the mean of
SIMILAR = 0.03  # of accuracy; what is better by more is much better
NOT_SIGNIFICANT = 0.05  # of accuracy
FINE = 0.75  # of the accuracy that it is compared to
PROGRESS = 0.5  # of the accuracy without faults
CHANCE = math.log(10)  # the loss of guessing evenly among ten classes: what is above has diverged

Place = tuple[str, str]  # figure, panel


class NotRun(Exception):  # noqa: N818
    """A claim needs a curve of which no repeat is finished."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and how far it is from where that would turn: above 0 exactly where it holds."""

    by: float
    seen: str  # the figures behind it
    unit: str = "accuracy"
    error: float | None = None  # standard error of `by` over the repeats, where there are several

    @property
    def holds(self) -> bool:
        return self.by > 0


class Evidence:
    """The ends of the curves, by figure, panel and curve."""

    def __init__(self, figures: Sequence[Figure], curves: Mapping[str, Curve]) -> None:
        self._runs = {
            (figure.name, panel.name, name): [curves.get(key(run)) for run in runs]
            for figure in figures
            for panel in figure.panels
            for name, runs in panel.curves.items()
        }

    def together(self, place: Place, *names: str) -> dict[str, list[Curve]]:
        """The repeats that are finished for all of these curves, seed by seed."""
        there = [self._runs.get((*place, name), []) for name in names]
        whole = [row for row in zip(*there, strict=False) if None not in row]
        if not whole:
            lacking = next((n for n, row in zip(names, there, strict=True) if not any(row)), ", ".join(names))
            raise NotRun(f"{'/'.join(place)}, {lacking}")
        return {name: [row[k] for row in whole if row[k] is not None] for k, name in enumerate(names)}

    def accuracies(self, place: Place, *names: str) -> dict[str, list[float]]:
        """Of each curve, where it ended: for every repeat that all of them have."""
        return {name: [accuracy_of(curve) for curve in found] for name, found in self.together(place, *names).items()}

    def losses(self, place: Place, *names: str) -> dict[str, float]:
        """Infinite where it was not finite in one of the repeats."""
        return {name: mean(map(loss_of, found)) for name, found in self.together(place, *names).items()}

    def accuracy(self, place: Place, name: str) -> float | None:
        """The mean over all finished repeats; None where there is none."""
        try:
            return mean(self.accuracies(place, name)[name])
        except NotRun:
            return None

    def count(self, place: Place, *names: str) -> str:
        """How many repeats there are, where some are missing."""
        finished = len(self.together(place, *names)[names[0]])
        figure, panel = place
        planned = len(self._runs[figure, panel, names[0]])
        return "" if finished == planned else f" ({finished} of {planned} repeats)"


def end(values: Sequence[float]) -> float:
    """The mean over the last evaluations."""
    return mean(values[-max(1, round(END * len(values))) :])


def accuracy_of(curve: Curve) -> float:
    return end([0.0 if value is None else value for value in curve.accuracy])


def loss_of(curve: Curve) -> float:
    return end([math.inf if value is None else value for value in curve.train_loss])


Check = Callable[[Evidence], Verdict]
Reason = Callable[[Scale], str]


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is checked."""

    name: str
    says: str
    check: Check
    why_not: Reason | None = None  # the likely reason where it fails


def beats(place: Place, winner: str = "zeno", others: Sequence[str] = BASELINES, by: float = 0.0) -> Check:
    """The winner ends with a higher accuracy than each of the others, by more than so much."""

    def check(evidence: Evidence) -> Verdict:
        ends = evidence.accuracies(place, winner, *others)
        best = max(others, key=lambda other: mean(ends[other]))
        found = _difference(evidence, place, winner, best)
        return replace(found, by=found.by - by)

    return check


def close_to(place: Place, one: str, other: str, within: float = SIMILAR) -> Check:
    """Both end with about the same accuracy."""

    def check(evidence: Evidence) -> Verdict:
        found = _difference(evidence, place, one, other)
        return replace(found, by=within - abs(found.by))

    return check


def not_below(place: Place, one: str, other: str, within: float = SIMILAR) -> Check:
    """The one ends at most a little below the other."""

    def check(evidence: Evidence) -> Verdict:
        found = _difference(evidence, place, one, other)
        return replace(found, by=within + found.by)

    return check


def keeps(place: Place, one: str, of: str, share: float = FINE) -> Check:
    """The one ends with at least a share of the other's accuracy."""

    def check(evidence: Evidence) -> Verdict:
        here, there = (mean(ends) for ends in evidence.accuracies(place, one, of).values())
        seen = f"{one} {here:.1%}, {share:.0%} of {of} is {share * there:.1%}"
        return Verdict(here - share * there, seen + evidence.count(place, one, of))

    return check


def loses(place: Place, one: str, of: str, share: float = PROGRESS) -> Check:
    """The one ends with less than a share of the other's accuracy."""

    def check(evidence: Evidence) -> Verdict:
        kept = keeps(place, one, of, share)(evidence)
        return replace(kept, by=-kept.by)

    return check


def alone_converges(places: Sequence[Place], winner: str = "zeno", others: Sequence[str] = BASELINES) -> Check:
    """The winner's loss ends below that of guessing at every place, and that of each other above it at one of them."""

    def check(evidence: Evidence) -> Verdict:
        found = [evidence.losses(place, winner, *others) for place in places]
        losses = {name: max(one[name] for one in found) for name in (winner, *others)}
        lowest = min(others, key=lambda other: losses[other])
        by = min(CHANCE - losses[winner], losses[lowest] - CHANCE)
        highest = "" if len(places) == 1 else "highest "
        seen = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items())
        counts = "".join(evidence.count(place, winner, *others) for place in places[:1])
        return Verdict(by, f"{highest}loss: {seen}; guessing: {CHANCE:.3g}{counts}", unit="loss")

    return check


def worst(place: Place, one: str, others: Sequence[str]) -> Check:
    """The one ends with the lowest accuracy."""

    def check(evidence: Evidence) -> Verdict:
        ends = evidence.accuracies(place, one, *others)
        return _difference(evidence, place, min(others, key=lambda other: mean(ends[other])), one)

    return check


def at_most_apart(place: Place, curves: Sequence[str], most: float = NOT_SIGNIFICANT) -> Check:
    """The best and the worst of the curves end close to each other."""

    def check(evidence: Evidence) -> Verdict:
        ends = {name: mean(values) for name, values in evidence.accuracies(place, *curves).items()}
        seen = ", ".join(f"{name}: {value:.1%}" for name, value in ends.items())
        return Verdict(most - (max(ends.values()) - min(ends.values())), seen)

    return check


def leads_more(place: Place, than: Place, winner: str = "zeno", others: Sequence[str] = BASELINES) -> Check:
    """The winner leads the best of the others at one place, and by more than at another."""

    def check(evidence: Evidence) -> Verdict:
        here, there = (beats(one, winner, others)(evidence) for one in (place, than))
        seen = f"lead {100 * here.by:+.1f} ({here.seen}) and {100 * there.by:+.1f} ({there.seen})"
        return Verdict(min(here.by, here.by - there.by), seen)

    return check


def both(*checks: Check) -> Check:
    """All hold; by how much is told of the one that holds by the least."""

    def check(evidence: Evidence) -> Verdict:
        found = [one(evidence) for one in checks]
        least = min(found, key=lambda verdict: verdict.by)
        return replace(least, seen="; ".join(dict.fromkeys(verdict.seen for verdict in found)))

    return check


def _difference(evidence: Evidence, place: Place, one: str, other: str) -> Verdict:
    here, there = evidence.accuracies(place, one, other).values()
    pairs = [a - b for a, b in zip(here, there, strict=True)]  # of equal seeds
    error = stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    seen = f"{one} {mean(here):.1%}, {other} {mean(there):.1%}{evidence.count(place, one, other)}"
    return Verdict(mean(pairs), seen, error=error)


def few_samples(scale: Scale) -> str:
    return (
        f"scores on 4 samples tell good from faulty by little, and {scale.epochs} epochs, of 200, give them little time"
    )


def early(scale: Scale) -> str:
    return f"after {scale.epochs} epochs, of 200, curves still differ by how fast they start"


def not_apart(scale: Scale) -> str:
    return f"after {scale.epochs} epochs, of 200, the rules have hardly come apart"


def one_seed(scale: Scale) -> str:
    return f"{scale.repeats} repeat(s), {scale.epochs} epochs: differences of this size are within what seeds change"


def slowed(scale: Scale) -> str:
    return f"8 flipped of 20 leave a fifth of the mean's step: {scale.epochs} epochs, of 200, are few for it"


def pulled(scale: Scale) -> str:
    return (
        "8 that agree move the median of each coordinate, the further the noisier the good ones are: early on, and far"
    )


def well_mixed(scale: Scale) -> str:
    return "disjoint parts of a well-mixed set are no harder to tell apart than samples of all of it"


NONE, LABEL_8, LABEL_12 = ("no_faults", "q0"), ("label_flip", "q8"), ("label_flip", "q12")
BIT_8, BIT_12, LARGE_8 = ("bit_flip", "q8"), ("bit_flip", "q12"), ("enlarged", "q8")
D_NONE, D_BIT_8, D_BIT_12 = ("disjoint_no_faults", "q0"), ("disjoint_bit_flip", "q8"), ("disjoint_bit_flip", "q12")
D_LABEL_8, D_LABEL_12 = ("disjoint_label_flip", "q8"), ("disjoint_label_flip", "q12")
SAMPLES, RHO, TRIM = ("batch_size", "q8"), ("rho_and_trim", "rho"), ("rho_and_trim", "trim")
RHOS, TRIMS = ("rho = 5e-05", "rho = 0.0005", "rho = 0.005"), ("b = 9", "b = 12", "b = 16")
LEAST, MOST = "n_r = 1", "n_r = 16"


def works(place: Place, *curves: str) -> Check:
    """Each of the curves makes progress; of what does not work, no variant is as good as any other."""
    return both(*(keeps(place, curve, WITHOUT_FAULTS, PROGRESS) for curve in curves))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "no faults: as fast as mean",
        "Without faults Zeno converges as fast as Mean.",
        not_below(NONE, "zeno", "mean"),
        early,
    ),
    Claim(
        "no faults: krum slower",
        "Without faults Krum converges slightly slower, at an acceptable rate.",
        both(beats(NONE, "mean", ["krum"]), keeps(NONE, "krum", "mean")),
        early,
    ),
    Claim(
        "label flip, q = 8: zeno wins", "With 8 flipped Zeno outperforms all baselines.", beats(LABEL_8), few_samples
    ),
    Claim(
        "label flip, q = 8: like krum",
        "With 8 flipped Zeno performs similar to Krum.",
        close_to(LABEL_8, "zeno", "krum"),
        early,
    ),
    Claim(
        "label flip, q = 12: zeno wins",
        "With 12 flipped Zeno performs much better than the baselines.",
        beats(LABEL_12, by=SIMILAR),
        few_samples,
    ),
    Claim(
        "label flip: especially q = 12",
        "Zeno outperforms the baselines especially with 12 flipped.",
        leads_more(LABEL_12, LABEL_8),
        few_samples,
    ),
    Claim(
        "faults slow zeno down",
        "With faulty gradients Zeno converges slower than without.",
        both(*(beats(place, WITHOUT_FAULTS, ["zeno"]) for place in (LABEL_8, LABEL_12, BIT_8, BIT_12))),
        one_seed,
    ),
    Claim(
        "bit flip, q = 8: zeno wins", "With 8 bit-flipped Zeno outperforms all baselines.", beats(BIT_8), few_samples
    ),
    Claim(
        "bit flip, q = 12: zeno wins", "With 12 bit-flipped Zeno outperforms all baselines.", beats(BIT_12), few_samples
    ),
    Claim(
        "bit flip, q = 12: zeno alone converges",
        "With 12 bit-flipped Zeno is the only one that avoids catastrophic divergence.",
        alone_converges([BIT_12]),
        few_samples,
    ),
    Claim(
        "mean looks fine at q = 8",
        "With 8 faulty Mean seems to perform well, since the faults keep the size of gradients.",
        both(keeps(LABEL_8, "mean", WITHOUT_FAULTS), keeps(BIT_8, "mean", WITHOUT_FAULTS)),
        slowed,
    ),
    Claim(
        "enlarged, mean fails",
        "Where the faults enlarge gradients, Mean fails.",
        loses(LARGE_8, "mean", WITHOUT_FAULTS),
        early,
    ),
    Claim(
        "median as an alternative",
        "When the correct workers dominate, Median can be an alternative.",
        both(keeps(LABEL_8, "median", WITHOUT_FAULTS), keeps(BIT_8, "median", WITHOUT_FAULTS)),
        pulled,
    ),
    Claim("n_r = 1 still works", "Zeno still works on a single sample.", works(SAMPLES, LEAST), few_samples),
    Claim("n_r helps", "More samples to score on improve convergence.", beats(SAMPLES, MOST, [LEAST]), one_seed),
    Claim(
        "n_r matters little",
        "The gap between few and many samples to score on is not significant.",
        both(close_to(SAMPLES, LEAST, MOST, NOT_SIGNIFICANT), works(SAMPLES, LEAST, MOST)),
        early,
    ),
    Claim(
        "robust to rho",
        "Zeno is robust to the choice of rho.",
        both(at_most_apart(RHO, RHOS), works(RHO, *RHOS)),
        few_samples,
    ),
    Claim(
        "robust to b",
        "Zeno is robust to the choice of b.",
        both(at_most_apart(TRIM, TRIMS), works(TRIM, *TRIMS)),
        early,
    ),
    Claim(
        "disjoint, no faults: as fast as mean",
        "(Read off the figure.) Disjoint data, no faults: Zeno converges as fast as Mean.",
        not_below(D_NONE, "zeno", "mean"),
        early,
    ),
    Claim(
        "disjoint label flip, q = 8: zeno wins",
        "Disjoint data, 8 flipped: Zeno outperforms all baselines.",
        beats(D_LABEL_8),
        few_samples,
    ),
    Claim(
        "disjoint label flip, q = 12: zeno wins",
        "Disjoint data, 12 flipped: Zeno outperforms all baselines.",
        beats(D_LABEL_12),
        few_samples,
    ),
    Claim(
        "disjoint label flip: progress",
        "Disjoint data, flipped labels: Zeno can still make reasonable progress.",
        both(works(D_LABEL_8, "zeno"), works(D_LABEL_12, "zeno")),
        few_samples,
    ),
    Claim(
        "krum is worst on disjoint data",
        "On disjoint data with flipped labels Krum performs worst.",
        both(*(worst(place, "krum", ["mean", "median", "zeno"]) for place in (D_LABEL_8, D_LABEL_12))),
        well_mixed,
    ),
    Claim(
        "disjoint bit flip, q = 8: zeno wins",
        "(Read off the figure.) Disjoint data, 8 bit-flipped: Zeno outperforms all baselines.",
        beats(D_BIT_8),
        few_samples,
    ),
    Claim(
        "disjoint bit flip, q = 12: zeno wins",
        "(Read off the figure.) Disjoint data, 12 bit-flipped: Zeno outperforms all baselines.",
        beats(D_BIT_12),
        few_samples,
    ),
    Claim(
        "zeno alone converges everywhere",
        "When the faulty workers dominate, Zeno is the only one that converges in all experiments.",
        alone_converges([LABEL_12, BIT_12, D_LABEL_12, D_BIT_12]),
        few_samples,
    ),
)


@dataclass(frozen=True)
class Finding:
    """A claim with what was found of it: a verdict, or what it still lacks."""

    claim: Claim
    verdict: Verdict | None
    lacks: str | None = None
    why_not: str | None = None  # where it fails

    @property
    def word(self) -> str:
        return "not run" if self.verdict is None else "holds" if self.verdict.holds else "fails"


def judge(scale: Scale, evidence: Evidence) -> list[Finding]:
    """All claims on what there is."""
    found = []
    for claim in CLAIMS:
        try:
            verdict = claim.check(evidence)
        except NotRun as error:
            found.append(Finding(claim, None, lacks=str(error)))
            continue
        why_not = claim.why_not(scale) if claim.why_not and not verdict.holds else None
        found.append(Finding(claim, verdict, why_not=why_not))
    return found
