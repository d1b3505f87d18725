"""The paper's experiments: its figures as runs, its claims as checks, and what came of them here."""

from zeno.experiments.claims import CLAIMS, Claim, Evidence, Finding, Verdict, judge
from zeno.experiments.figures import FIGURES, Figure, Panel, figures
from zeno.experiments.reproduce import SCALE_FILE, Curve, RunsFailed, missing, read, run, scale_of
from zeno.experiments.scales import SCALES, Scale

__all__ = [
    "CLAIMS",
    "FIGURES",
    "SCALES",
    "SCALE_FILE",
    "Claim",
    "Curve",
    "Evidence",
    "Figure",
    "Finding",
    "Panel",
    "RunsFailed",
    "Scale",
    "Verdict",
    "figures",
    "judge",
    "missing",
    "read",
    "run",
    "scale_of",
]
