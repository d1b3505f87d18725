"""The claims of the paper, as checks on the curves. A claim that fails is shown as such, with the likely reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction.evidence import SIMILAR, Evidence, NotRun, Verdict, both
from zeno.studies.reproduction.figures import Figure, figures
from zeno.studies.reproduction.scales import Scale

FEW_SAMPLES = "scores on 4 samples separate good from faulty candidates weakly, and training is short: {epochs} epochs"
EARLY = "after {epochs} epochs, of 200, curves still differ by how fast they start"
ONE_SEED = "with {repeats} repeat(s) and {epochs} epochs, differences of this size are within the noise of seeds"
SLOWED = "8 flipped of 20 leave a fifth of the mean's step, and {epochs} epochs, of 200, are few for that"
PULLED = "8 candidates that agree shift the median of each coordinate, and more so while the good ones are noisy"
WELL_MIXED = "disjoint parts of a well-mixed dataset are as easy to tell apart as samples of all of it"

NONE, LABEL_8, LABEL_12 = ("no_faults", "q0"), ("label_flip", "q8"), ("label_flip", "q12")
BIT_8, BIT_12, LARGE_8 = ("bit_flip", "q8"), ("bit_flip", "q12"), ("enlarged", "q8")
D_NONE, D_BIT_8, D_BIT_12 = ("disjoint_no_faults", "q0"), ("disjoint_bit_flip", "q8"), ("disjoint_bit_flip", "q12")
D_LABEL_8, D_LABEL_12 = ("disjoint_label_flip", "q8"), ("disjoint_label_flip", "q12")
SAMPLES, RHO, TRIM = ("batch_size", "q8"), ("rho_and_trim", "rho"), ("rho_and_trim", "trim")
RHOS, TRIMS = ("rho = 5e-05", "rho = 0.0005", "rho = 0.005"), ("b = 9", "b = 12", "b = 16")
LEAST, MOST = "n_r = 1", "n_r = 16"


Check = Callable[[Evidence], Verdict]


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is checked."""

    name: str
    says: str
    check: Check
    why_not: str = FEW_SAMPLES  # the likely reason if it fails; {fields} are those of the scale


def _wins(where: str, place: tuple[str, str]) -> tuple[str, Check]:
    return f"{where} Zeno outperforms all baselines.", lambda e: e.beats(place)


_CLAIMS: dict[str, tuple[str, Check] | tuple[str, Check, str]] = {
    "no faults: as fast as mean": (
        "Without faults Zeno converges as fast as Mean.",
        lambda e: e.not_below(NONE, "zeno", "mean"),
        EARLY,
    ),
    "no faults: krum slower": (
        "Without faults Krum converges slightly slower, at an acceptable rate.",
        lambda e: both(e.beats(NONE, "mean", ["krum"]), e.keeps(NONE, "krum", "mean")),
        EARLY,
    ),
    "label flip, q = 8: zeno wins": _wins("With 8 flipped", LABEL_8),
    "label flip, q = 8: like krum": (
        "With 8 flipped Zeno performs similar to Krum.",
        lambda e: e.close_to(LABEL_8, "zeno", "krum"),
        EARLY,
    ),
    "label flip, q = 12: zeno wins": (
        "With 12 flipped Zeno performs much better than the baselines.",
        lambda e: e.beats(LABEL_12, margin=SIMILAR),
    ),
    "label flip: especially q = 12": (
        "Zeno outperforms the baselines especially with 12 flipped.",
        lambda e: e.leads_more(LABEL_12, LABEL_8),
    ),
    "faults slow zeno down": (
        "With faulty gradients Zeno converges slower than without.",
        lambda e: both(*(e.beats(place, WITHOUT_FAULTS, ["zeno"]) for place in (LABEL_8, LABEL_12, BIT_8, BIT_12))),
        ONE_SEED,
    ),
    "bit flip, q = 8: zeno wins": _wins("With 8 bit-flipped", BIT_8),
    "bit flip, q = 12: zeno wins": _wins("With 12 bit-flipped", BIT_12),
    "bit flip, q = 12: zeno alone converges": (
        "With 12 bit-flipped Zeno is the only one that avoids catastrophic divergence.",
        lambda e: e.alone_converges(BIT_12),
    ),
    "mean looks fine at q = 8": (
        "With 8 faulty Mean seems to perform well, since the faults keep the size of gradients.",
        lambda e: both(e.keeps(LABEL_8, "mean"), e.keeps(BIT_8, "mean")),
        SLOWED,
    ),
    "enlarged, mean fails": (
        "Where the faults enlarge gradients, Mean fails.",
        lambda e: e.loses(LARGE_8, "mean"),
        EARLY,
    ),
    "median as an alternative": (
        "When the correct workers dominate, Median can be an alternative.",
        lambda e: both(e.keeps(LABEL_8, "median"), e.keeps(BIT_8, "median")),
        PULLED,
    ),
    "n_r = 1 still works": ("Zeno still works on a single sample.", lambda e: e.works(SAMPLES, LEAST)),
    "n_r helps": ("More samples to score on improve convergence.", lambda e: e.beats(SAMPLES, MOST, [LEAST]), ONE_SEED),
    "n_r matters little": (
        "The gap between few and many samples to score on is not significant.",
        lambda e: e.insensitive(SAMPLES, LEAST, MOST),
        EARLY,
    ),
    "robust to rho": ("Zeno is robust to the choice of rho.", lambda e: e.insensitive(RHO, *RHOS)),
    "robust to b": ("Zeno is robust to the choice of b.", lambda e: e.insensitive(TRIM, *TRIMS), EARLY),
    "disjoint, no faults: as fast as mean": (
        "(Read off the figure.) Disjoint data, no faults: Zeno converges as fast as Mean.",
        lambda e: e.not_below(D_NONE, "zeno", "mean"),
        EARLY,
    ),
    "disjoint label flip, q = 8: zeno wins": _wins("Disjoint data, 8 flipped:", D_LABEL_8),
    "disjoint label flip, q = 12: zeno wins": _wins("Disjoint data, 12 flipped:", D_LABEL_12),
    "disjoint label flip: progress": (
        "Disjoint data, flipped labels: Zeno can still make reasonable progress.",
        lambda e: both(e.works(D_LABEL_8, "zeno"), e.works(D_LABEL_12, "zeno")),
    ),
    "krum is worst on disjoint data": (
        "On disjoint data with flipped labels Krum performs worst.",
        lambda e: both(*(e.worst(place, "krum", ["mean", "median", "zeno"]) for place in (D_LABEL_8, D_LABEL_12))),
        WELL_MIXED,
    ),
    "disjoint bit flip, q = 8: zeno wins": _wins("(Read off the figure.) Disjoint data, 8 bit-flipped:", D_BIT_8),
    "disjoint bit flip, q = 12: zeno wins": _wins("(Read off the figure.) Disjoint data, 12 bit-flipped:", D_BIT_12),
    "zeno alone converges everywhere": (
        "When the faulty workers dominate, Zeno is the only one that converges in all experiments.",
        lambda e: e.alone_converges(LABEL_12, BIT_12, D_LABEL_12, D_BIT_12),
    ),
}
CLAIMS = tuple(Claim(name, *rest) for name, rest in _CLAIMS.items())


def _about(scale: Scale) -> str:
    return (
        f"{scale.task}, {scale.model}, {scale.epochs} epochs of {scale.steps_per_epoch} steps, 20 workers with batches "
        f"of 100, {scale.repeats} repeat(s), {scale.repeats_of_hard} with 12 faulty workers, seeds from {scale.seed} "
        "on."
    )


@dataclass(frozen=True)
class Paper:
    """A paper whose experiments are reproduced."""

    title: str  # of the summary page
    figures: Callable[[Scale], Sequence[Figure]]
    claims: Sequence[Claim]
    about: Callable[[Scale], str]  # the settings that all runs share, in words
    name: str | None = None  # what the command needs to be told; the first paper needs nothing


FIRST = Paper("The paper's experiments", figures, CLAIMS, _about)


@dataclass(frozen=True)
class Finding:
    """A claim and its verdict; None if a curve that it needs is not finished, or the scale checks no claims."""

    claim: Claim
    word: str  # holds, fails, not run, or "it runs"
    verdict: Verdict | None
    seen: str  # the numbers behind the verdict, with the likely reason if the claim fails; or why there is none


def judge(scale: Scale, evidence: Evidence, claims: Sequence[Claim] = CLAIMS) -> list[Finding]:
    """Checks all claims."""
    return [_judge(claim, scale, evidence) for claim in claims]


def _judge(claim: Claim, scale: Scale, evidence: Evidence) -> Finding:
    try:
        verdict = claim.check(evidence)
    except NotRun as error:
        return Finding(claim, "not run", None, f"needs {error}")
    if not scale.checks_claims:
        return Finding(claim, "it runs", None, f"the claim is about CIFAR-10, and is not checked on {scale.task}")
    if verdict.holds:
        return Finding(claim, "holds", verdict, verdict.seen)
    return Finding(claim, "fails", verdict, f"{verdict.seen}. Likely: {claim.why_not.format(**vars(scale))}")
