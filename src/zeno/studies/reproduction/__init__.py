"""The paper's experiments: its figures as runs, its claims as checks, and what came of them here."""

from zeno.studies.reproduction.claims import CLAIMS, Claim, Evidence, Finding, Verdict, judge
from zeno.studies.reproduction.figures import FIGURES, Figure, Panel, figures
from zeno.studies.reproduction.reproduce import SCALE_FILE, Curve, RunsFailed, missing, read, run, scale_of
from zeno.studies.reproduction.scales import SCALES, Scale

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
