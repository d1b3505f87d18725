"""A dry run: the code that a run will call, tried on zeros, so that mistakes show now and not after an hour."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from zeno.rules import Rule
from zeno.rules.aggregate import checked
from zeno.server.requirements import check_rho
from zeno.training.build import check_delay, learning_rates
from zeno.training.execution import ExecutionSettings
from zeno.training.run import Run


def dry_run(run: Run, execution: ExecutionSettings = ExecutionSettings()) -> None:
    """Raises ValueError if the rule cannot work with this many candidates, or the delay, the optimizer or its schedule
    cannot work at all.
    """
    try_rule(run.rule, run.rows)
    check_delay(run, execution)
    try:
        learning_rates(replace(run, steps=1))  # calls the optimizer and the schedule
    except (TypeError, RuntimeError, ArithmeticError) as error:
        name = f"optimizer={run.optimizer!r} with schedule={run.schedule!r}"
        raise ValueError(f"A run cannot use {name}: {error}.") from error


def warn_of_rho(run: Run) -> None:
    """Warns if Zeno's rho is not below the learning rate of the first step."""
    check_rho(run.rule, learning_rates(replace(run, steps=1)))


def try_rule(rule: Rule, workers: int) -> None:
    """Raises what the rule raises for this many candidates, whatever they are, and if it returns no aggregate."""
    checked(rule(torch.zeros(workers, 1), _Zeros()), rule, workers, 1)


class _Zeros:
    """An oracle for a loss of one parameter that is 0 everywhere."""

    lr = 1.0

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:
        return torch.zeros(len(candidates), dtype=torch.float64)

    def gradient(self, after: Tensor | None = None) -> Tensor:
        return torch.zeros(1)

    def half_gradients(self) -> Tensor:
        return torch.zeros(2, 1)
