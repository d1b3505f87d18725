"""The settings that decide a result; the same in Python, in a TOML file and on the command line.

Importing this module does not import torch: the command line needs the settings for its help and its error messages.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from zeno.problem.registry import describe, find
from zeno.records import toml

if TYPE_CHECKING:
    from zeno.faults import Fault
    from zeno.faults.schedule import Schedule
    from zeno.problem.splits import Split
    from zeno.problem.tasks import Task
    from zeno.rules import Rule
    from zeno.workers.delays import Delay

    T = TypeVar("T")

    class OrText(Generic[T]):
        """A setting that is an object, and may be given as its text, such as "zeno(trim=3)"."""

        def __get__(self, run: object, owner: type) -> T: ...
        def __set__(self, run: object, value: T | str) -> None: ...


DEFAULT_RULE = "zeno_auto"  # on the command line; that of `Run` is the paper's
PAPER_TRIM = 4  # b of Krum and Zeno in the paper's runs without faults
RULE_SETTINGS = {"trim": ("trim", "faulty"), "rho": ("rho",), "zeno_batch_size": ("batch_size", "samples")}
"""Settings that set a parameter of the rule, with the names that rules have for it."""

ONLY_ASYNCHRONOUS = ("buffer", "delay", "max_staleness", "staleness_discount")

LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
    "of": ("one of", lambda value, choices: value in choices),
}


def setting(default: Any, panel: str, text: str, parse_as: str | None = None, **limits: Any) -> Any:
    """A field with its panel and help text on the command line, and limits: least, above, below, of.

    With `parse_as` ("rule", "fault", "split", "delay") the default is the text of an object, made when a Run needs it.
    """

    def parse() -> Any:
        from zeno.training.settings import PARSERS  # which imports torch

        return PARSERS[str(parse_as)](default)

    metadata = {"default": default, "panel": panel, "help": text, "limits": limits}
    return field(default_factory=parse, metadata=metadata) if parse_as else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Run:
    """Everything that decides a result. The defaults are the paper's.

    Rule, fault, split and delay are objects, or text as on the command line: `Run(rule="zeno(trim=3)")`. The task is a
    name, a Task, or a function without arguments that returns one.
    """

    task: str | Task | Callable[[], Task] = setting(
        "digits", "Task", "What to train: a name from `zeno tasks`, or package.module:function."
    )
    data: str | Path | None = setting(None, "Task", "Folder with mnist or cifar10. Default: that of `zeno data`.")
    model: str | None = setting(
        None, "Task", "Network: mlp, cnn (the paper's) or small_cnn (a quarter as wide). Default: the task's."
    )
    workers: int = setting(20, "Workers", "Number of workers (m).", least=1)
    batch_size: int = setting(100, "Workers", "Samples in each worker's gradient (n).", least=1)
    split: OrText[Split] = setting(
        "iid", "Workers", "Which worker has which samples: iid, disjoint, by_label or 'dirichlet(alpha=0.5)'.", "split"
    )
    server_data: float = setting(
        0.0, "Workers", "Share of the training set that only the server has; 0: it samples all of it.", least=0, below=1
    )
    precision: str = setting(
        "float32", "Workers", "Precision of gradients: float32 or bf16. Scores use float32.", of=("float32", "bf16")
    )
    local_steps: int = setting(1, "Workers", "SGD steps of a worker before it sends their summed gradients.", least=1)
    worker_momentum: float = setting(
        0.0, "Workers", "Workers send the decayed mean of their gradients; this is the decay.", least=0, below=1
    )
    rule: OrText[Rule] = setting(
        f"zeno(trim={PAPER_TRIM})", "Rule", "How candidates are combined into an update: see `zeno rules`.", "rule"
    )
    quarantine: bool = setting(False, "Rule", "Stop asking suspect workers for gradients, and retry them later.")
    failure_rate: float = setting(
        0.001,
        "Rule",
        "Share of the steps at which a healthy worker may fail; far more makes it suspect.",
        above=0,
        below=1,
    )
    fault: OrText[Fault] = setting(
        "label_flip", "Faults", "What faulty workers do: see `zeno faults`. Several: 'zero(on=3)+crash'.", "fault"
    )
    faulty: int = setting(0, "Faults", "Number of workers to make faulty (q); 0: no faults.", least=0)
    redraw: bool = setting(False, "Faults", "Choose the faulty workers anew at every step.")
    asynchronous: bool = setting(
        False, "Asynchronous", "Update the model as gradients arrive, and wait for no worker. A step is one update."
    )
    buffer: int = setting(1, "Asynchronous", "Arrivals that the rule combines into one update.", least=1)
    delay: OrText[Delay] = setting(
        "constant",
        "Asynchronous",
        "Simulated time of a reply: constant, 'uniform(0, 10)', 'lognormal(1)' or 'slow(10, on=1)'.",
        "delay",
    )
    max_staleness: int | None = setting(
        None, "Asynchronous", "Discard arrivals that are more updates old than this. Default: keep all.", least=0
    )
    staleness_discount: float = setting(
        0.0,
        "Asynchronous",
        "Multiply a candidate that is s updates old by (1 + s)^-discount.",
        least=0,
        below=math.inf,
    )
    steps: int = setting(5000, "Training", "Steps to train (the paper: 200 epochs of 25).", least=1)
    lr: float = setting(0.1, "Training", "Learning rate, also of Zeno's trial step (gamma).", above=0, below=math.inf)
    optimizer: str = setting("sgd", "Training", "Any of torch.optim, e.g. adam or 'sgd(momentum=0.9)'.")
    schedule: str | None = setting(
        None, "Training", "Any of torch.optim.lr_scheduler, e.g. 'steplr(step_size=100)'. Default: a constant lr."
    )
    eval_every: int = setting(25, "Training", "Steps between evaluations.", least=1)
    eval_samples: int = setting(10_000, "Training", "Maximum number of samples of each set to evaluate on.", least=1)
    seed: int = setting(0, "Training", "Seed of every random draw.", least=0)

    def __post_init__(self) -> None:
        from zeno.faults import Fault
        from zeno.problem.tasks import Task
        from zeno.rules.rule import Rule
        from zeno.training.settings import PARSERS

        for name, parse in PARSERS.items():
            if isinstance(vars(self)[name], str):
                object.__setattr__(self, name, parse(vars(self)[name]))
        require(isinstance(self.rule, Rule), "rule", self.rule, "a rule, such as zeno.Zeno(trim=4)")
        require(callable(self.split), "split", self.split, "a split, such as zeno.IID()")
        require(isinstance(self.fault, Fault), "fault", self.fault, "a fault, such as zeno.LabelFlip()")
        require(callable(self.delay), "delay", self.delay, "a delay, such as 'uniform(0, 10)'")
        check_values(vars(self))
        self._check_asynchrony()
        known = isinstance(self.task, str | Task) or callable(self.task)
        require(known, "task", self.task, "a name, a zeno.Task or a function that returns one")
        self.faulty_workers()  # raises if the parts of the fault need more or fewer workers

    def _check_asynchrony(self) -> None:
        """Raises ValueError for settings of an asynchronous run in another one, or a buffer that cannot be filled."""
        defaults = {f.name: f for f in fields(self) if f.name in ONLY_ASYNCHRONOUS}
        changed = [name for name, f in defaults.items() if getattr(self, name) != default_of(f)]
        if changed and not self.asynchronous:
            found = f"{changed[0]}={getattr(self, changed[0])!r} with asynchronous=False"
            raise ValueError(f"Only an asynchronous run has {changed[0]}. Found {found}. Set asynchronous.")
        require(self.buffer <= self.workers, "buffer", self.buffer, f"at most workers={self.workers}")

    @property
    def rows(self) -> int:
        """How many candidates the rule gets at once: of all workers, or those in a buffer."""
        return self.buffer if self.asynchronous else self.workers

    def faulty_workers(self) -> Schedule:
        """Which workers have which fault, as a function of the step."""
        from zeno.faults.schedule import Schedule

        return Schedule(self.fault, self.faulty, self.workers, self.seed, self.redraw)

    def to_toml(self) -> str:
        """The settings as a TOML file that `zeno train` reads back; those that are None are left out.

        An object of a user's class is written as its class, with its fields if it is a dataclass of plain values. Two
        such objects compare as equal, in any process, if these are equal.
        """
        from zeno.training.settings import REGISTRIES

        texts = {name: describe(getattr(self, name), known) for name, known in REGISTRIES.items()}
        return toml.dumps({**vars(self), **texts, "task": self.task_name})

    @property
    def task_name(self) -> str:
        """The task as text: its name, or package.module:function if it can be imported from there."""
        if isinstance(self.task, str):
            return self.task
        module, name = (str(getattr(self.task, part, "")) for part in ("__module__", "__qualname__"))
        return f"{module}:{name}" if name.isidentifier() and module != "__main__" else describe(self.task, {})


def default_of(f: Field[Any]) -> Any:
    """The default of a setting, as an object."""
    return f.default if f.default_factory is MISSING else f.default_factory()


def check_values(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for a setting of a Run that is unknown, of the wrong type or out of range.

    Settings that are left out are at their defaults. Objects, such as a rule, are not checked.
    """
    known = {f.name: f for f in fields(Run)}
    for name, value in settings.items():
        find("setting", name, {**known, **RULE_SETTINGS})
        if name in known:
            check_value(known[name], value)
    if "fault" in settings and "faulty" not in settings:
        raise ValueError(
            f"A fault needs a number of workers. Found fault={settings['fault']!r} without faulty. "
            "Set faulty too; 0 trains without faults."
        )
    faulty, workers = settings.get("faulty", Run.faulty), settings.get("workers", Run.workers)
    require(faulty <= workers, "faulty", faulty, f"at most workers={workers}")


def kind_of(f: Field[Any]) -> type:
    """The type of a setting on the command line and in a file: int, float, bool or str."""
    named = {"int": int, "float": float, "bool": bool}
    return next((named[name] for name in str(f.type).split(" | ") if name in named), str)


def check_value(f: Field[Any], value: object) -> None:
    """Raises ValueError for a value of the wrong type or out of range."""
    kind = kind_of(f)
    if value is None and f.default is None:
        return
    if kind is not str:
        fits = isinstance(value, int | float if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    elif str(f.type) in ("str", "str | None"):
        fits = isinstance(value, str)
    else:  # text or an object, and not another type of a TOML file
        fits = not isinstance(value, int | float | list | dict | None)
    require(fits, f.name, value, f"of type {kind.__name__}")
    limits = f.metadata["limits"].items()
    words = [f"{LIMITS[name][0]} {', '.join(bound) if name == 'of' else bound}" for name, bound in limits]
    require(all(LIMITS[name][1](value, bound) for name, bound in limits), f.name, value, " and ".join(words))


def require(holds: bool, name: str, value: object, condition: str) -> None:
    if not holds:
        raise ValueError(f"The setting {name} must be {condition}. Found {name}={value!r}.")
