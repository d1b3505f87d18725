"""The experiments of the second paper, Zeno++ (Xie, Koyejo and Gupta, ICML 2020): asynchronous SGD on CIFAR-10.

10 workers with batches of 128, 4 or 6 of them faulty, a gradient of the server every 10 arrivals, on 5 % of the
training set that only the server has. The paper draws the staleness of each gradient, up to 10. Here it follows from
simulated delays: with 10 workers it is 9 on average.

The paper begins with an epoch without faults, and has lr 0.1 and rho 0.001. Here stale gradients and faults are there
from the first step. With lr 0.1 asynchronous SGD without faults then stays at the loss of guessing, so lr is 0.02.
rho is a fifth as well, which keeps the limit on the cosine, rho / lr.
"""

from dataclasses import replace
from functools import lru_cache

from zeno.faults import Fault, LabelFlip, SignFlip
from zeno.rules import Mean, ServerAlone, ZenoAuto, ZenoPP
from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction.claims import EARLY, Claim, Paper
from zeno.studies.reproduction.evidence import both
from zeno.studies.reproduction.figures import SERVER, Figure, Panel
from zeno.studies.reproduction.scales import Scale
from zeno.training.run import Run
from zeno.workers.delays import Uniform

NAME = "zenopp"
LR, RHO = 0.02, 2e-4
WORKERS, BATCH, SAMPLES, BUFFER = 10, 128, 128, 5
OURS = f"zeno_auto, buffers of {BUFFER}"
SAMPLES_PER_STEP = 2000  # of the first paper: an epoch has as many samples here

NO_FAULTS, LABEL_4, LABEL_6 = (NAME, "q0"), (NAME, "label_flip_q4"), (NAME, "label_flip_q6")
SIGN_4, SIGN_6 = (NAME, "sign_flip_q4"), (NAME, "sign_flip_q6")


def base(scale: Scale) -> Run:
    """The run that all curves vary: an update for every arrival."""
    per_epoch = BUFFER * max(1, round(scale.steps_per_epoch * SAMPLES_PER_STEP / BATCH / BUFFER))
    return replace(
        scale.run(),
        workers=WORKERS,
        batch_size=BATCH,
        server_data=0.05,
        asynchronous=True,
        delay=Uniform(0, 10),
        lr=LR,
        steps=scale.epochs * per_epoch,
        eval_every=per_epoch,
        rule=Mean(),
    )


@lru_cache(maxsize=8)
def figures(scale: Scale) -> list[Figure]:
    """One figure, with a panel for each fault."""
    faults: dict[str, tuple[str, Fault]] = {
        "label_flip": ("label flip", LabelFlip()),
        "sign_flip": ("sign flip times 10", SignFlip(10)),
    }
    panels = [_panel(scale, "q0", "no faults", LabelFlip(), 0)]
    for name, (title, fault) in faults.items():
        panels += [_panel(scale, f"{name}_q{q}", f"{title}, q = {q}", fault, q) for q in (4, 6)]
    shows = (
        "Test accuracy and loss by epoch, of as many arrivals for every curve. *mean*: asynchronous SGD, which applies "
        f"every arrival. *{SERVER}*: the gradient on the server's samples alone, at every arrival. Seconds are those "
        "of one process that computes all gradients."
    )
    return [Figure(NAME, "Asynchronous SGD", shows, panels, by_seconds=True)]


def _panel(scale: Scale, name: str, title: str, fault: Fault, faulty: int) -> Panel:
    curves: dict[str, tuple[Run, ...]] = {}
    for seed in range(scale.seed, scale.seed + scale.repeats):
        good = replace(base(scale), seed=seed)
        run = replace(good, fault=fault if faulty else good.fault, faulty=faulty)
        in_buffers = replace(run, buffer=BUFFER, steps=run.steps // BUFFER, eval_every=run.eval_every // BUFFER)
        in_buffers = replace(in_buffers, lr=BUFFER * run.lr)  # one step is as long as those of its arrivals together
        made = {
            WITHOUT_FAULTS: good,
            **({"mean": run} if faulty else {}),
            "zenopp": replace(run, rule=ZenoPP(RHO, batch_size=SAMPLES)),
            OURS: replace(in_buffers, rule=ZenoAuto(samples=SAMPLES)),
            SERVER: replace(good, rule=ServerAlone(SAMPLES)),
        }
        curves = {curve: (*curves.get(curve, ()), one) for curve, one in made.items()}
    return Panel(name, title, curves)


CLAIMS = (
    Claim(
        "no faults: as fast as asynchronous SGD",
        "Without faults Zeno++ converges about as fast as asynchronous SGD.",
        lambda e: e.not_below(NO_FAULTS, "zenopp", WITHOUT_FAULTS),
        EARLY,
    ),
    Claim(
        "sign flip: asynchronous SGD fails",
        "With flipped signs, asynchronous SGD without a defence fails.",
        lambda e: both(e.loses(SIGN_4, "mean"), e.loses(SIGN_6, "mean")),
        EARLY,
    ),
    Claim(
        "zenopp wins",
        "With faulty workers Zeno++ outperforms asynchronous SGD, for every fault and number.",
        lambda e: both(*(e.beats(place, "zenopp", ["mean"]) for place in (LABEL_4, LABEL_6, SIGN_4, SIGN_6))),
        EARLY,
    ),
    Claim(
        "a faulty majority: progress",
        "Zeno++ makes progress also with more faulty workers than good ones.",
        lambda e: both(e.works(LABEL_6, "zenopp"), e.works(SIGN_6, "zenopp")),
        EARLY,
    ),
    Claim(
        "sign flip: hardly slower than without faults",
        "(Read off the figures.) With flipped signs Zeno++ ends near asynchronous SGD without faults.",
        lambda e: both(*(e.keeps(place, "zenopp") for place in (SIGN_4, SIGN_6))),
        EARLY,
    ),
)


def about(scale: Scale) -> str:
    """The settings that all curves share, in words."""
    run = base(scale)
    return (
        f"{scale.task}, {scale.model}, {scale.epochs} epochs of {run.eval_every} arrivals, {WORKERS} workers with "
        f"batches of {BATCH}, {scale.repeats} repeat(s), seeds from {scale.seed} on."
    )


PAPER = Paper("Zeno++: the experiments", figures, CLAIMS, about, NAME)
