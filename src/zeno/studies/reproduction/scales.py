"""How large the paper's experiments are run: as in the paper, on a small machine, or in seconds."""

import json
from dataclasses import dataclass, fields

from zeno.training.run import Run, key_of

STEPS_AN_EPOCH = 25


@dataclass(frozen=True)
class Scale:
    """What the experiments of one scale share. The rest is the paper's, and the same at every scale."""

    name: str
    task: str
    model: str
    epochs: int
    repeats: int
    repeats_of_hard: int  # of the figures with more faulty workers than good ones
    steps_an_epoch: int = STEPS_AN_EPOCH
    eval_samples: int = 10_000
    precision: str = "float32"  # of the workers' gradients
    seed: int = 0  # of the first repeat
    data: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "repeats", "repeats_of_hard", "steps_an_epoch", "eval_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"A scale needs {name} of at least 1. Found {name}={getattr(self, name)}.")

    def run(self) -> Run:
        """The run that those of all figures are variations of."""
        return Run(
            task=self.task,
            model=self.model,
            data=self.data,
            precision=self.precision,
            steps=self.epochs * self.steps_an_epoch,
            eval_every=self.steps_an_epoch,
            eval_samples=self.eval_samples,
            seed=self.seed,
        )

    def to_toml(self) -> str:
        """The scale as a TOML file; where the data is belongs to the machine, and is left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "data"}
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


SCALES = {
    "paper": Scale("paper", "cifar10", "cnn", epochs=200, repeats=10, repeats_of_hard=10),
    "small": Scale("small", "cifar10", "small_cnn", epochs=10, repeats=1, repeats_of_hard=3, eval_samples=5_000),
    "smoke": Scale("smoke", "digits", "mlp", epochs=4, repeats=1, repeats_of_hard=2, steps_an_epoch=15),
}


def key(run: Run) -> str:
    """What tells runs apart: all that decides a result, and not where this machine has the data."""
    return key_of(run.to_toml())
