"""Everything that decides a result, in one place; in Python, in a TOML file and on the command line alike."""

import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from zeno.faults import FAULTS, Fault, LabelFlip, Schedule, together
from zeno.problem import PRECISIONS
from zeno.problem.dataset import IID, SPLITS, Split
from zeno.problem.registry import NOTHING, build, describe, find, parse, split
from zeno.problem.tasks import Task
from zeno.rules import PARTS, PRESETS, RULES, Rule, Zeno, chain

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type) and kind is not Optimizer
}
SCHEDULES: dict[str, Callable[..., LRScheduler]] = {
    name.lower(): kind
    for name, kind in vars(lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, LRScheduler) and kind is not LRScheduler
}

REGISTRIES: dict[str, Mapping[str, Any]] = {"rule": PARTS, "fault": FAULTS, "split": SPLITS}
DEFAULT_RULE = "zeno_auto"  # of the command line; that of `Run` is the paper's
PAPER_TRIM = 4  # b, for Krum and for Zeno, where no worker is faulty
RULE_SETTINGS = {  # settings of the rule that have a flag of their own -> its parameters of that meaning
    "trim": ("trim", "faulty"),
    "rho": ("rho",),
    "zeno_batch_size": ("batch_size",),
}


def setting(default: Any, panel: str, text: str) -> Any:
    """A field with what the command line says of it."""
    return field(default=default, metadata={"panel": panel, "help": text})


def kind_of(f: "Field[Any]") -> type:
    """What the value of a setting is written as, on the command line and in a file: a number, a yes or no, or text."""
    kinds = [kind for kind in (f.type, *get_args(f.type)) if kind in (int, float, bool)]
    return kinds[0] if kinds else str


@dataclass(frozen=True)
class Run:
    """Everything that decides a result; the defaults are the paper's."""

    task: str | Task = setting(
        "digits", "Task", "What to train: a name that `zeno tasks` lists, or package.module:function."
    )
    data: str | Path | None = setting(
        None, "Task", "Folder with the files of mnist or cifar10. Default: where `zeno data` puts them."
    )
    model: str | None = setting(
        None, "Task", "Network: mlp, cnn (the paper's) or small_cnn (a quarter as wide). Default: the task's own."
    )
    workers: int = setting(20, "Workers", "Number of workers (m).")
    batch_size: int = setting(100, "Workers", "Samples in each worker's gradient (n).")
    split: Split = setting(
        IID(), "Workers", "Who has which samples: iid, disjoint, by_label or 'dirichlet(alpha=0.5)'."
    )
    server_data: float = setting(
        0.0, "Workers", "Share of the training set that only the server has; 0: it samples all of it (the paper)."
    )
    precision: str = setting(
        "float32", "Workers", "What gradients are computed in: float32, or bf16 (torch's autocast). Scores: float32."
    )
    local_steps: int = setting(
        1, "Workers", "SGD steps that a worker takes by itself, each on a batch of its own; it sends their sum."
    )
    worker_momentum: float = setting(
        0.0, "Workers", "Workers send the decayed mean of their gradients: the weight of the past (beta), below 1."
    )
    rule: Rule = setting(
        Zeno(trim=PAPER_TRIM), "Rule", "What makes one update of the candidates: a name that `zeno rules` lists."
    )
    quarantine: bool = setting(False, "Rule", "Stop asking workers that are suspect, and try them again after a while.")
    fault: Fault = setting(
        LabelFlip(), "Faults", "What goes wrong on faulty workers: see `zeno faults`. Several: 'zero(on=3)+crash'."
    )
    faulty: int = setting(0, "Faults", "Number of workers to make faulty (q); 0: no fault acts.")
    redraw: bool = setting(False, "Faults", "Make other workers faulty at every step.")
    steps: int = setting(5000, "Training", "Steps to train (the paper: 200 epochs of 25).")
    lr: float = setting(0.1, "Training", "Learning rate, and the step that Zeno tries (gamma).")
    optimizer: str = setting("sgd", "Training", "Any of torch.optim, e.g. adam or 'sgd(momentum=0.9)'.")
    schedule: str | None = setting(
        None, "Training", "Any of torch.optim.lr_scheduler, e.g. 'steplr(step_size=100)'. Default: a constant lr."
    )
    eval_every: int = setting(25, "Training", "Steps from one evaluation to the next.")
    eval_samples: int = setting(10_000, "Training", "Samples of each set that are evaluated, at most.")
    seed: int = setting(0, "Training", "What every random draw derives from.")

    def __post_init__(self) -> None:
        for f in fields(self):
            if kind_of(f) is not str:
                check_kind(f.name, kind_of(f), getattr(self, f.name))
        self._need(callable(self.rule), "rule", "as a rule, such as zeno.Zeno(trim=4)")
        self._need(callable(self.split), "split", "as a split, such as zeno.IID()")
        self._need(isinstance(self.fault, Fault), "fault", "as a fault, such as zeno.LabelFlip()")
        for name in ("workers", "batch_size", "local_steps", "steps", "eval_every", "eval_samples"):
            self._need(getattr(self, name) >= 1, name, "of at least 1")
        for name in ("faulty", "seed"):
            self._need(getattr(self, name) >= 0, name, "of at least 0")
        self._need(self.faulty <= self.workers, "faulty", f"of at most workers={self.workers}")
        self.faulty_workers()  # says so where the parts of the fault take more workers, or fewer
        for name in ("server_data", "worker_momentum"):
            self._need(0 <= getattr(self, name) < 1, name, "of at least 0 and below 1")
        self._need(math.isfinite(self.lr) and self.lr > 0, "lr", "that is finite and above 0")
        self._need(self.precision in PRECISIONS, "precision", f"as one of {', '.join(PRECISIONS)}")
        # Dry runs: whatever cannot work with this many workers or this optimizer says so now, not after an hour.
        try_rule(self.rule, self.workers)
        self._try_optimizer()

    def _need(self, holds: bool, name: str, condition: str) -> None:
        if not holds:
            raise ValueError(f"A run needs {name} {condition}. Found {name}={getattr(self, name)!r}.")

    def make_optimizer(self, params: nn.Parameter) -> tuple[Optimizer, LRScheduler | None]:
        """The optimizer over the flat vector [d], and the schedule of its learning rate."""
        for text in filter(None, (self.optimizer, self.schedule)):
            _, args, keywords = parse(text)
            if args:
                raise ValueError(f"Parameters of optimizers and schedules need their names. Found {text!r}.")
            if "lr" in keywords:
                raise ValueError(f"The learning rate is a setting of its own. Found {text!r}. Set lr instead.")
        optimizer = build("optimizer", self.optimizer, OPTIMIZERS, overrides={"params": [params], "lr": self.lr})
        if self.schedule is None:
            return optimizer, None
        return optimizer, build("schedule", self.schedule, SCHEDULES, overrides={"optimizer": optimizer})

    def lrs(self) -> tuple[float, ...]:
        """The learning rate of every step: schedules know the number of the step, and nothing else of a run."""
        if self.schedule is None:
            return (self.lr,) * self.steps
        optimizer, schedule = self.make_optimizer(nn.Parameter(torch.zeros(1)))
        found = []
        for _ in range(self.steps):
            found.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            schedule.step()  # type: ignore[union-attr]
        return tuple(found)

    def _try_optimizer(self) -> None:
        params = nn.Parameter(torch.zeros(1))
        params.grad = torch.zeros(1)
        try:
            optimizer, schedule = self.make_optimizer(params)
            optimizer.step()
            if schedule is not None:
                schedule.step()
        except (TypeError, RuntimeError, ArithmeticError) as error:
            name = f"optimizer={self.optimizer!r} with schedule={self.schedule!r}"
            raise ValueError(f"A run cannot use {name}: {error}.") from error

    def faulty_workers(self) -> Schedule:
        """Who is faulty, and in which way, as a function of the step."""
        return Schedule(self.fault, self.faulty, self.workers, self.seed, self.redraw)

    def to_toml(self) -> str:
        """The settings as a TOML file that `zeno train` reads back; what is None is left out."""
        lines = []
        for name, value in ((f.name, getattr(self, f.name)) for f in fields(self)):
            if name in REGISTRIES:
                value = describe(value, REGISTRIES[name])
            if value is not None:
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}\n")
        return "".join(lines)


def key_of(toml: str) -> str:
    """What tells runs apart: the settings in the text that `Run.to_toml` made, but for those at their defaults.

    So it is the same for what a version with fewer settings has written. Where this machine has the data is no part.
    """
    usual = set(Run().to_toml().splitlines())
    told = [line for line in toml.splitlines() if line not in usual and not line.startswith("data = ")]
    return "".join(line + "\n" for line in told)


def from_settings(settings: Mapping[str, Any]) -> Run:
    """A Run from plain values, as a TOML file or the command line give them; errors say which one is wrong."""
    known = {f.name: f for f in fields(Run)}
    values: dict[str, Any] = {}
    for name, value in settings.items():
        find("setting", name, {**known, **RULE_SETTINGS})
        if name in RULE_SETTINGS:
            continue
        check_kind(name, kind_of(known[name]), value)
        values[name] = value

    if "split" in values:
        values["split"] = build("split", values["split"], SPLITS)
    if "fault" in values:
        values["fault"] = make_fault(values["fault"])
    rule_settings = {name: number_or_text(settings[name]) for name in RULE_SETTINGS if name in settings}
    values["rule"] = make_rule(values.get("rule", DEFAULT_RULE), rule_settings)
    return Run(**values)


def number_or_text(value: object) -> object:
    """What the command line has as text: 13, 5e-4 or auto."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def check_kind(name: str, kind: object, value: object) -> None:
    wanted: Any = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"The setting {name} does not take a {type(value).__name__}. Found {name}={value!r}.")


def try_rule(rule: Rule, workers: int) -> None:
    """Raises what the rule raises for this many candidates, however good they are."""
    rule(torch.zeros(workers, 1), _Zeros())


class _Zeros:
    """An oracle of one parameter that knows nothing."""

    lr = 1.0

    def __call__(self, candidates: Tensor) -> Tensor:
        return torch.zeros(len(candidates), dtype=torch.float64)

    def gradient(self) -> Tensor:
        return torch.zeros(1)

    def parts(self, candidates: Sequence[Tensor], samples: int) -> Tensor:
        return torch.zeros(len(candidates), min(2, samples), dtype=torch.float64)


def make_fault(text: str) -> Fault:
    """The fault that the text names, or several: `label_flip(on=8)+crash`."""
    parts = [build("fault", part, FAULTS) for part in split(text)]
    return together(*parts) if len(parts) > 1 else parts[0]


def _without_preset(text: str) -> str:
    """The rule that the name of a preset stands for."""
    name, _, _ = parse(text)
    return text if name not in PRESETS else describe(build("rule", text, PRESETS), PARTS)


def name_of(rule: Rule) -> str:
    """The shortest text that makes this rule."""
    preset = next((name for name, make in PRESETS.items() if make() == rule), None)
    return preset or describe(rule, PARTS)


def make_rule(text: str, settings: Mapping[str, Any] = NOTHING, defaults: Mapping[str, Any] = NOTHING) -> Rule:
    """The rule, or the chain of parts, that the text names.

    Settings win over the text, for every part that has a parameter of that meaning; defaults fill in what is left out.
    """
    texts = [_without_preset(part) for part in split(text)]
    kinds = [find("rule", parse(part)[0], PARTS) for part in texts]
    if kinds[-1] not in RULES.values():
        raise ValueError(f"The rule {text!r} makes no update. End it with one that does, such as {text}+mean.")
    parameters = [[f.name for f in fields(kind)] for kind in kinds]  # type: ignore[arg-type]

    def of(part: int, values: Mapping[str, Any]) -> dict[str, Any]:
        return {p: value for name, value in values.items() for p in RULE_SETTINGS[name] if p in parameters[part]}

    for name in settings:
        if not any(of(part, {name: None}) for part in range(len(texts))):
            takes = ", ".join(dict.fromkeys(p for names in parameters for p in names)) or "nothing"
            raise ValueError(f"The rule {text!r} has no {name}. It takes: {takes}.")
    defaults = {"trim": PAPER_TRIM, **defaults}
    known: Mapping[str, Any] = PARTS
    return chain(*[build("rule", part, known, of(i, defaults), of(i, settings)) for i, part in enumerate(texts)])
