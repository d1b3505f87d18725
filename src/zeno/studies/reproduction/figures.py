"""The figures of the paper, as the runs of their curves.

20 workers, batches of 100, Zeno on n_r = 4 samples with rho = 5e-4: the defaults of a `Run`. The paper does not state b
for panels with faulty workers; here it is one more than their number. For Krum it is 8, the most that it tolerates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from zeno.faults import BitFlip, Fault, LabelFlip, SignFlip
from zeno.problem.splits import Disjoint
from zeno.rules import Krum, Mean, Median, Rule, ServerAlone, Zeno, ZenoAuto
from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction.scales import Scale
from zeno.training.run import PAPER_TRIM, Run

BASELINES = ("mean", "median", "krum")  # of the paper
OURS = "zeno_auto"  # Zeno without tuning, next to the paper's rules in every figure
SERVER = "server alone"  # on as many samples
MOST_OF_KRUM = 8
DISJOINT_LR = 0.05
HARD = 12  # faulty workers, of 20


@dataclass(frozen=True)
class Panel:
    """Curves to compare, with one run per repeat."""

    name: str
    title: str
    curves: Mapping[str, tuple[Run, ...]]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, and what it shows."""

    name: str
    title: str
    shows: str
    panels: Sequence[Panel]
    by_seconds: bool = False  # whether the accuracy is drawn over the seconds of training as well

    @property
    def runs(self) -> list[Run]:
        return [run for panel in self.panels for runs in panel.curves.values() for run in runs]


def figures(scale: Scale, names: Sequence[str] = ()) -> list[Figure]:
    """All figures, or those with these names; `label_flip/q12` is one panel of a figure."""
    return chosen_of(_all(scale), names)


def chosen_of(made: Mapping[str, Figure], names: Sequence[str]) -> list[Figure]:
    """The figures with these names, and of `figure/panel` this panel only; all without names."""
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
    return [replace(made[name], panels=panels) for name, panels in chosen.items()]


@lru_cache(maxsize=8)
def _all(scale: Scale) -> dict[str, Figure]:
    iid = scale.run()
    disjoint = replace(iid, split=Disjoint(), lr=DISJOINT_LR)
    flipped = replace(iid, fault=LabelFlip(), faulty=8)
    sizes = {f"n_r = {n}": Zeno(trim=9, batch_size=n) for n in (1, 2, 4, 8, 16)}
    rhos = {f"rho = {value:g}": Zeno(trim=9, rho=value) for value in (5e-5, 5e-4, 5e-3)}
    trims = {f"b = {value}": Zeno(trim=value) for value in (9, 12, 16)}
    rho = _panel_of(scale, flipped, "rho", "rho, b = 9", rhos)
    trim = _panel_of(scale, flipped, "trim", "b, rho = 5e-4", trims)

    def q8_q12(base: Run, fault: Fault) -> list[Panel]:
        return [_panel(scale, replace(base, fault=fault, faulty=q)) for q in (8, HARD)]

    found: dict[str, tuple[str, str, list[Panel]]] = {
        "no_faults": (
            "I.i.d. data, no faults",
            "The cost of robustness when no worker is faulty: Zeno and Krum discard b = 4 good candidates.",
            [_panel(scale, iid)],
        ),
        "label_flip": ("I.i.d. data, label flip", "Faulty workers replace label y by 9 - y.", q8_q12(iid, LabelFlip())),
        "bit_flip": (
            "I.i.d. data, bit flip",
            "All faulty workers send the same vector: the negative gradient of the first of them.",
            q8_q12(iid, BitFlip()),
        ),
        "batch_size": (
            "Zeno's batch, label flip",
            "How many samples the server needs to score candidates.",
            [_panel_of(scale, flipped, "q8", "q = 8", sizes)],
        ),
        "enlarged": (
            "I.i.d. data, sign flip times 10",
            "Not a figure of the paper. It tests a claim: the mean survives q = 8 because the faults keep their size.",
            [_panel(scale, replace(iid, fault=SignFlip(10), faulty=8))],
        ),
        "disjoint_no_faults": (
            "Disjoint data, no faults",
            "Each worker has samples that no other worker has; lr 0.05, here and in the next two figures.",
            [_panel(scale, disjoint)],
        ),
        "disjoint_label_flip": ("Disjoint data, label flip", "Flipped labels.", q8_q12(disjoint, LabelFlip())),
        "disjoint_bit_flip": ("Disjoint data, bit flip", "Flipped bits.", q8_q12(disjoint, BitFlip())),
        "rho_and_trim": ("Zeno's rho and b, label flip, q = 8", "Sensitivity to rho and b.", [rho, trim]),
    }
    return {name: Figure(name, *rest) for name, rest in found.items()}


def _panel(scale: Scale, base: Run) -> Panel:
    """The paper's rules."""
    trim = base.faulty + 1 if base.faulty else PAPER_TRIM
    krum = Krum(faulty=min(trim, MOST_OF_KRUM))
    rules = {"mean": Mean(), "median": Median(), "krum": krum, "zeno": Zeno(trim=trim)}
    return _panel_of(scale, base, f"q{base.faulty}", f"q = {base.faulty}", rules)


def _panel_of(scale: Scale, base: Run, name: str, title: str, rules: Mapping[str, Rule]) -> Panel:
    """A curve for each rule, ours included, next to the mean without faults if there are any."""
    repeats = scale.repeats_of_hard if base.faulty >= HARD else scale.repeats
    bases = [replace(base, seed=seed) for seed in range(scale.seed, scale.seed + repeats)]
    every = {**rules, OURS: ZenoAuto(), **({SERVER: ServerAlone()} if scale.server_alone else {})}
    curves = {curve: tuple(replace(one, rule=rule) for one in bases) for curve, rule in every.items()}
    if base.faulty:
        good = tuple(replace(one, rule=Mean(), fault=LabelFlip(), faulty=0) for one in bases)
        curves = {WITHOUT_FAULTS: good, **curves}
    return Panel(name, title, curves)
