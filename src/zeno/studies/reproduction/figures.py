"""The figures of the paper, each a function from a scale to its runs.

20 workers, batches of 100, Zeno on n_r = 4 samples with rho = 5e-4, all of which are the defaults of a `Run`. The paper
leaves b open where workers are faulty; here it is one more than there are of them, and 8, the most it bears, for Krum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from zeno.faults import BitFlip, Fault, LabelFlip, SignFlip
from zeno.problem.dataset import Disjoint
from zeno.problem.threads import one_thread
from zeno.rules import Krum, Mean, Median, Rule, Zeno
from zeno.studies.reproduction.scales import Scale
from zeno.training.run import PAPER_TRIM, Run

WITHOUT_FAULTS = "mean without faults"
BASELINES = ("mean", "median", "krum")  # of the paper
OURS = "zeno_auto"  # the best Zeno of our own, beside the paper's in every figure
MOST_OF_KRUM = 8
DISJOINT_LR = 0.05
HARD = 12  # faulty workers, of 20


@dataclass(frozen=True)
class Panel:
    """Curves to see side by side: of each, one run a repeat."""

    name: str
    title: str
    curves: Mapping[str, tuple[Run, ...]]


@dataclass(frozen=True)
class Figure:
    """One of the paper's, with what it is to show."""

    name: str
    title: str
    shows: str
    panels: tuple[Panel, ...]

    @property
    def runs(self) -> list[Run]:
        return [run for panel in self.panels for runs in panel.curves.values() for run in runs]


def no_faults(scale: Scale) -> Figure:
    """No faulty worker, all of them with samples of all kinds."""
    shows = "What robustness costs where nothing is wrong: Zeno and Krum give up b = 4 candidates for nothing."
    return Figure("no_faults", "I.i.d. data, no faults", shows, (_panel(scale, scale.run()),))


def label_flip(scale: Scale) -> Figure:
    """8 and 12 of 20 workers learn from labels that are 9 minus the right one."""
    shows = "Faulty workers take every label for 9 minus it."
    return Figure("label_flip", "I.i.d. data, label flip", shows, _by_faulty(scale, scale.run(), LabelFlip()))


def bit_flip(scale: Scale) -> Figure:
    """8 and 12 of 20 workers send the same vector: minus the gradient of the first of them."""
    shows = "Faulty workers send one and the same vector, minus the gradient of the first of them."
    return Figure("bit_flip", "I.i.d. data, bit flip", shows, _by_faulty(scale, scale.run(), BitFlip()))


def disjoint_no_faults(scale: Scale) -> Figure:
    """No faulty worker, each with samples that no other has."""
    shows = "Every worker has samples of its own; lr 0.05, here and in the next two."
    return Figure("disjoint_no_faults", "Disjoint data, no faults", shows, (_panel(scale, _disjoint(scale)),))


def disjoint_label_flip(scale: Scale) -> Figure:
    """Label flip, each worker with samples that no other has."""
    panels = _by_faulty(scale, _disjoint(scale), LabelFlip())
    return Figure(
        "disjoint_label_flip", "Disjoint data, label flip", "As with i.i.d. data, on disjoint samples.", panels
    )


def disjoint_bit_flip(scale: Scale) -> Figure:
    """Bit flip, each worker with samples that no other has."""
    panels = _by_faulty(scale, _disjoint(scale), BitFlip())
    return Figure("disjoint_bit_flip", "Disjoint data, bit flip", "As with i.i.d. data, on disjoint samples.", panels)


def batch_size(scale: Scale) -> Figure:
    """Zeno on 1, 2, 4, 8 and 16 samples of the server's own, 8 workers with flipped labels."""
    base = replace(scale.run(), fault=LabelFlip(), faulty=8)
    rules = {f"n_r = {n}": Zeno(trim=9, batch_size=n) for n in (1, 2, 4, 8, 16)}
    shows = "How many samples of its own the server needs to score on."
    return Figure("batch_size", "Zeno's batch, label flip", shows, (_of_zeno(scale, base, "q8", "q = 8", rules),))


def rho_and_trim(scale: Scale) -> Figure:
    """Zeno with other rho, and with other b, 8 workers with flipped labels."""
    base = replace(scale.run(), fault=LabelFlip(), faulty=8)
    rho = {f"rho = {value:g}": Zeno(trim=9, rho=value) for value in (5e-5, 5e-4, 5e-3)}
    trim = {f"b = {value}": Zeno(trim=value) for value in (9, 12, 16)}
    panels = _of_zeno(scale, base, "rho", "rho, b = 9", rho), _of_zeno(scale, base, "trim", "b, rho = 5e-4", trim)
    return Figure("rho_and_trim", "Zeno's rho and b, label flip, q = 8", "How much hangs on rho and b.", panels)


def enlarged(scale: Scale) -> Figure:
    """8 of 20 workers send minus ten times their gradient."""
    base = replace(scale.run(), fault=SignFlip(10), faulty=8)
    shows = "Not a figure of the paper's, but a claim: the mean bears q = 8 because those faults keep their size."
    return Figure("enlarged", "I.i.d. data, sign flip times 10", shows, (_panel(scale, base),))


FIGURES: dict[str, Callable[[Scale], Figure]] = {
    f.__name__: f
    for f in (
        no_faults,
        label_flip,
        bit_flip,
        batch_size,
        enlarged,
        disjoint_no_faults,
        disjoint_label_flip,
        disjoint_bit_flip,
        rho_and_trim,
    )
}


def figures(scale: Scale, names: Sequence[str] = ()) -> list[Figure]:
    """All figures, or those of these names; `label_flip/q12` is one panel of a figure."""
    made = _all(scale)
    if not names:
        return list(made.values())
    chosen: dict[str, list[Panel]] = {}
    for text in names:
        name, _, panel = text.partition("/")
        there = [p for p in made[name].panels if not panel or p.name == panel] if name in made else []
        if not there:
            known = [f"{f.name}/{p.name}" for f in made.values() if len(f.panels) > 1 for p in f.panels]
            raise ValueError(f"There is no figure {text!r}. There are: {', '.join([*made, *known])}.")
        chosen.setdefault(name, []).extend(p for p in there if p not in chosen.get(name, ()))
    return [replace(made[name], panels=tuple(panels)) for name, panels in chosen.items()]


@lru_cache(maxsize=8)
@one_thread()  # every run tries its rule on a few numbers
def _all(scale: Scale) -> dict[str, Figure]:
    return {name: make(scale) for name, make in FIGURES.items()}


def _disjoint(scale: Scale) -> Run:
    return replace(scale.run(), split=Disjoint(), lr=DISJOINT_LR)


def _by_faulty(scale: Scale, base: Run, fault: Fault) -> tuple[Panel, ...]:
    return tuple(_panel(scale, replace(base, fault=fault, faulty=faulty)) for faulty in (8, HARD))


def _panel(scale: Scale, base: Run) -> Panel:
    """The paper's curves, and ours."""
    trim = base.faulty + 1 if base.faulty else PAPER_TRIM
    rules: dict[str, Rule] = {
        "mean": Mean(),
        "median": Median(),
        "krum": Krum(faulty=min(trim, MOST_OF_KRUM)),
        "zeno": Zeno(trim=trim),
        OURS: Zeno.auto(),
    }
    return _panel_of(scale, base, f"q{base.faulty}", f"q = {base.faulty}", rules)


def _of_zeno(scale: Scale, base: Run, name: str, title: str, rules: Mapping[str, Rule]) -> Panel:
    """Variants of Zeno, and ours."""
    return _panel_of(scale, base, name, title, {**rules, OURS: Zeno.auto()})


def _panel_of(scale: Scale, base: Run, name: str, title: str, rules: Mapping[str, Rule]) -> Panel:
    """A curve for each rule, beside the mean without faults where there are any."""
    repeats = scale.repeats_of_hard if base.faulty >= HARD else scale.repeats
    bases = [replace(base, seed=seed) for seed in range(scale.seed, scale.seed + repeats)]
    curves = {curve: tuple(replace(one, rule=rule) for one in bases) for curve, rule in rules.items()}
    if base.faulty:
        good = tuple(replace(one, rule=Mean(), fault=LabelFlip(), faulty=0) for one in bases)
        curves = {WITHOUT_FAULTS: good, **curves}
    return Panel(name, title, curves)
