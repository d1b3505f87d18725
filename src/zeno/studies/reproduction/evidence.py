"""The ends of the curves, and checks that compare them.

The paper's words leave open how much better "much better" is. The thresholds below fix it. They are the same at every
scale, and are never loosened to fit a result.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction.figures import BASELINES, Figure, Panel
from zeno.studies.sweep import Outcome, key
from zeno.training.run import Run

END = 0.2  # the end of a curve is the mean over this share of its evaluations, the last ones
SIMILAR = 0.03  # difference in accuracy; a larger one is "much better"
NOT_SIGNIFICANT = 0.05  # difference in accuracy
FINE = 0.75  # share of the accuracy compared to
PROGRESS = 0.5  # share of the accuracy without faults
CHANCE = math.log(10)  # loss of guessing evenly among ten classes; a run above it has diverged

Place = tuple[str, str]  # figure, panel


class NotRun(Exception):  # noqa: N818
    """A check needs a curve without a finished repeat."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and by what margin."""

    by: float  # distance to the threshold: above 0 if the claim holds
    seen: str  # the numbers behind it
    unit: str = "accuracy"
    error: float | None = None  # standard error of `by` over the repeats; None: a single repeat

    @property
    def holds(self) -> bool:
        return self.by > 0


class Evidence:
    """The figures with the curves of the runs that are finished; its methods are the checks."""

    def __init__(self, figures: Sequence[Figure], curves: Mapping[str, Outcome]) -> None:
        self.figures, self._outcomes = figures, curves
        self._panels = {(figure.name, panel.name): panel for figure in figures for panel in figure.panels}

    def finished(self, runs: Iterable[Run]) -> list[Outcome]:
        return [self._outcomes[key(run)] for run in runs if key(run) in self._outcomes]

    def together(self, place: Place, *names: str) -> dict[str, Sequence[Outcome]]:
        """The repeats that are finished for all of these curves, seed by seed."""
        planned = [self._panels[place].curves[name] for name in names]
        rows = [row for row in map(self.finished, zip(*planned, strict=False)) if len(row) == len(names)]
        if not rows:
            unfinished = (name for name, runs in zip(names, planned, strict=True) if not self.finished(runs))
            raise NotRun(f"{'/'.join(place)}, {next(unfinished, ', '.join(names))}")
        return dict(zip(names, zip(*rows, strict=True), strict=True))

    def accuracies(self, place: Place, *names: str) -> dict[str, list[float]]:
        """The final accuracy of each curve, for every repeat that all of them have."""
        return {name: [accuracy_of(curve) for curve in found] for name, found in self.together(place, *names).items()}

    def ends(self, panel: Panel) -> dict[str, float | None]:
        """The final accuracy of each curve, as the mean over all finished repeats; None if there are none."""
        found = {name: [accuracy_of(one) for one in self.finished(runs)] for name, runs in panel.curves.items()}
        return {name: mean(values) if values else None for name, values in found.items()}

    def count(self, place: Place, *names: str) -> str:
        """The number of repeats, if some are missing."""
        finished, planned = len(self.together(place, *names)[names[0]]), len(self._panels[place].curves[names[0]])
        return "" if finished == planned else f" ({finished} of {planned} repeats)"

    def difference(self, place: Place, one: str, other: str) -> Verdict:
        """The accuracy of one curve minus that of another."""
        here, there = self.accuracies(place, one, other).values()
        pairs = [a - b for a, b in zip(here, there, strict=True)]  # of equal seeds
        error = stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        seen = f"{one} {mean(here):.1%}, {other} {mean(there):.1%}{self.count(place, one, other)}"
        return Verdict(mean(pairs), seen, error=error)

    def beats(
        self, place: Place, winner: str = "zeno", others: Sequence[str] = BASELINES, margin: float = 0.0
    ) -> Verdict:
        """The winner ends with a higher accuracy than each of the others, by more than the margin."""
        ends = self.accuracies(place, winner, *others)
        found = self.difference(place, winner, max(others, key=lambda other: mean(ends[other])))
        return replace(found, by=found.by - margin)

    def close_to(self, place: Place, one: str, other: str) -> Verdict:
        """Both end with about the same accuracy."""
        found = self.difference(place, one, other)
        return replace(found, by=SIMILAR - abs(found.by))

    def not_below(self, place: Place, one: str, other: str) -> Verdict:
        """The first ends with about the same accuracy as the second, or a higher one."""
        found = self.difference(place, one, other)
        return replace(found, by=SIMILAR + found.by)

    def keeps(self, place: Place, one: str, of: str = WITHOUT_FAULTS, share: float = FINE) -> Verdict:
        """The first ends with at least a share of the accuracy of the second."""
        here, there = (mean(ends) for ends in self.accuracies(place, one, of).values())
        seen = f"{one} {here:.1%}, {share:.0%} of {of} is {share * there:.1%}"
        return Verdict(here - share * there, seen + self.count(place, one, of))

    def loses(self, place: Place, one: str, of: str = WITHOUT_FAULTS, share: float = PROGRESS) -> Verdict:
        """The first ends with less than a share of the accuracy of the second."""
        kept = self.keeps(place, one, of, share)
        return replace(kept, by=-kept.by)

    def works(self, place: Place, *curves: str) -> Verdict:
        """Each curve makes progress. Otherwise variants that all fail would count as equally good."""
        return both(*(self.keeps(place, curve, share=PROGRESS) for curve in curves))

    def worst(self, place: Place, one: str, others: Sequence[str]) -> Verdict:
        """The first ends with the lowest accuracy."""
        ends = self.accuracies(place, one, *others)
        return self.difference(place, min(others, key=lambda other: mean(ends[other])), one)

    def insensitive(self, place: Place, *curves: str) -> Verdict:
        """The curves differ little, and each makes progress."""
        return both(self.at_most_apart(place, curves), self.works(place, *curves))

    def at_most_apart(self, place: Place, curves: Sequence[str], most: float = NOT_SIGNIFICANT) -> Verdict:
        """The best and the worst of the curves end close to each other."""
        ends = {name: mean(values) for name, values in self.accuracies(place, *curves).items()}
        seen = ", ".join(f"{name}: {value:.1%}" for name, value in ends.items())
        return Verdict(most - (max(ends.values()) - min(ends.values())), seen)

    def leads_more(self, place: Place, than: Place, winner: str = "zeno", others: Sequence[str] = BASELINES) -> Verdict:
        """The winner leads the best of the others at one place, and by more than at another."""
        here, there = (self.beats(one, winner, others) for one in (place, than))
        seen = f"lead {100 * here.by:+.1f} ({here.seen}) and {100 * there.by:+.1f} ({there.seen})"
        return Verdict(min(here.by, here.by - there.by), seen)

    def alone_converges(self, *places: Place, winner: str = "zeno", others: Sequence[str] = BASELINES) -> Verdict:
        """The winner's loss ends below chance at every place, and the loss of each other above it at one of them."""
        found = [self.together(place, winner, *others) for place in places]
        losses = {name: max(mean(map(loss_of, one[name])) for one in found) for name in (winner, *others)}
        lowest = min(losses[other] for other in others)
        highest = "" if len(places) == 1 else "highest "
        seen = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items())
        seen = f"{highest}loss: {seen}; guessing: {CHANCE:.3g}{self.count(places[0], winner, *others)}"
        return Verdict(min(CHANCE - losses[winner], lowest - CHANCE), seen, unit="loss")


def both(*verdicts: Verdict) -> Verdict:
    """All hold; the margin is the smallest of theirs."""
    least = min(verdicts, key=lambda verdict: verdict.by)
    return replace(least, seen="; ".join(dict.fromkeys(verdict.seen for verdict in verdicts)))


def end(values: Sequence[float]) -> float:
    """The mean over the last evaluations."""
    return mean(values[-max(1, round(END * len(values))) :])


def accuracy_of(curve: Outcome) -> float:
    return end([0.0 if value is None else value for value in curve.accuracy])


def loss_of(curve: Outcome) -> float:
    return end([math.inf if value is None else value for value in curve.train_loss])
