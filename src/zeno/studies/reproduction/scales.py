"""The size of the experiments: as in the paper, smaller or shorter, or for a test that takes seconds."""

from dataclasses import dataclass
from pathlib import Path

from zeno.records import toml
from zeno.training.run import Run

SCALE_FILE = "scale.toml"


@dataclass(frozen=True)
class Scale:
    """What the experiments of one scale share. All other settings are the paper's at every scale."""

    name: str
    task: str
    model: str
    epochs: int
    repeats: int
    repeats_of_hard: int  # in panels with more faulty workers than good ones
    steps_per_epoch: int = 25
    eval_samples: int = 10_000
    precision: str = "float32"  # of the workers' gradients
    seed: int = 0  # of the first repeat
    data: str | None = None
    server_alone: bool = False  # whether each panel also shows the server's own gradient, without any worker
    paper: str | None = None  # whose experiments; the first paper's if not given

    def __post_init__(self) -> None:
        for name in ("epochs", "repeats", "repeats_of_hard", "steps_per_epoch", "eval_samples"):
            if (value := vars(self)[name]) < 1:
                raise ValueError(f"A scale needs {name} of at least 1. Found {name}={value}.")

    @property
    def checks_claims(self) -> bool:
        """Whether the paper's claims are checked: they are about its data. Elsewhere, the code is shown to run."""
        return self.task.startswith("cifar10")

    def run(self) -> Run:
        """The run that all figures vary."""
        return Run(
            task=self.task,
            model=self.model,
            data=self.data,
            precision=self.precision,
            steps=self.epochs * self.steps_per_epoch,
            eval_every=self.steps_per_epoch,
            eval_samples=self.eval_samples,
            seed=self.seed,
        )

    def to_toml(self) -> str:
        """The scale as a TOML file, without the folder of the data, which differs between machines."""
        return toml.dumps({**vars(self), "data": None})


def scale_of(folder: Path) -> Scale:
    """Reads the scale of a folder of results."""
    path = folder / SCALE_FILE
    text = path.read_text(encoding="utf-8").replace("steps_an_epoch", "steps_per_epoch")  # as earlier versions wrote it
    try:
        return Scale(**toml.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} does not describe a scale: {error}. Remove it to start over.") from None


SCALES = {
    "paper": Scale("paper", "cifar10", "cnn", epochs=200, repeats=10, repeats_of_hard=10),
    "small": Scale("small", "cifar10", "small_cnn", epochs=10, repeats=1, repeats_of_hard=3, eval_samples=5_000),
    "long": Scale(
        "long",
        "cifar10(size=16)",
        "small_cnn",
        200,
        repeats=1,
        repeats_of_hard=1,
        eval_samples=3_000,
        server_alone=True,
    ),
    "smoke": Scale("smoke", "digits", "mlp", epochs=4, repeats=1, repeats_of_hard=2, steps_per_epoch=15),
}
