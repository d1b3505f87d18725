"""The server of your own loop: what the workers sent goes in, the model has taken the step when it comes out.

    server = zeno.Server(model, loss, optimizer, data, rule)
    aggregate = server.step(gradients)

How gradients come to the server is yours. Whatever a worker sent is checked before it is used: what is missing, of the
wrong shape or type, or not finite is a fault of that worker only. Candidates are tried on the model itself, with the
learning rates that the optimizer has now; the model is as it was afterwards, and then takes the step of the optimizer.

Shapes: m workers, d parameters that are trained, n samples.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.data import Batch
from zeno.ledger import Ledger, ledger_of
from zeno.problem import Loss, Problem
from zeno.records import Journal, Record, read_whole
from zeno.refusals import check, check_optimizer, check_rho
from zeno.rules import PARTS, Aggregate, Arrivals, Rule, TooFewUsable, Zeno
from zeno.rules.memory import all_finite
from zeno.samples import Samples
from zeno.sent import Gradients, as_vector
from zeno.spec import describe
from zeno.step import NOT_FINITE, STATISTICS_SAMPLES, Asked, Clock, Oracles, record_of
from zeno.vectors import trainable

MOST_REASONS = 3  # in an error


class Server:
    """Scores what workers sent on samples of its own, and lets the model take the step that the rule makes of it.

    `data` gives batches (inputs, targets), as a `DataLoader` does, and is begun again whenever it ends. It is asked for
    as many samples as the rule needs, whatever its batches are; None will do for a rule that needs none. With a
    `folder`, a record of every step is written there, for `zeno suspects`, `zeno report` and `zeno watch`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,  # (outputs [n, ...], targets [n, ...]) -> the mean over the samples
        optimizer: Optimizer,
        data: Iterable[Sequence[Tensor]] | None,
        rule: Rule = Zeno.auto(),
        *,
        folder: str | Path | None = None,
    ) -> None:
        check(model, loss, optimizer, rule)
        self.model = model
        self.optimizer = optimizer
        self.rule = rule
        self.problem = Problem(model, loss)
        self.workers: int | None = None  # m, known from the first step on
        self.steps = 0  # that were made or skipped
        self.record: Record | None = None  # of the last step
        flat = self.problem.flat
        self._kind = _kind(flat)
        self._samples = None if data is None else Samples(data, flat.device)
        self._folder = None if folder is None else Path(folder)
        self._journal: Journal | None = None
        self._ledger: Ledger | None = None
        self._state: object = None  # the rule's memory
        self._candidates: Tensor | None = None  # [m, d]
        self._rates: tuple[list[float], float | Tensor] = [], 0.0
        check_rho(rule, min(self._lrs()))
        if self.problem.norms and data is None:
            raise ValueError(
                "A Server needs data for a model with BatchNorm: running statistics come from samples of its own, "
                f"never from a worker. Found data=None with {type(self.problem.norms[0]).__name__}."
            )
        self._refresh()

    def step(self, gradients: Gradients) -> Aggregate:
        """One step of the model from what the workers sent; says who was kept, and with which scores.

        Worker i is entry i, at every step: None where nothing came. A list or a tensor is scored at once. Any other
        iterable is taken one by one, and then `Zeno(trim=b)` holds only the best m - b of them; at the first step it
        needs a length.

        Raises `zeno.TooFewUsable`, and the model stays as it was, where more entries are unusable than the rule bears.
        """
        self._check_unchanged()
        workers = self._num_workers(gradients)
        clock, errors, lr = Clock(), dict[int, str](), self._lr()
        with self._undisturbed() as x:
            descent = Asked(lr, self._oracles(x, lr), clock)
            try:
                aggregate = self._aggregate(gradients, workers, descent, errors, clock)
            except TooFewUsable as error:
                error.args = (f"{error}{_reasons(errors)}",)
                self._write(workers, None, str(error), errors, clock)
                raise
        with clock("update"):
            self._take(aggregate.update)
            self._refresh()
        self._state = aggregate.state
        self._write(workers, aggregate, None, errors, clock)
        return aggregate

    @property
    def ledger(self) -> Ledger:
        """What is known of each worker so far, with verdicts: `server.ledger.suspects`."""
        if self._ledger is None:
            raise ValueError("A Server has a ledger from its first step on. Found no step yet.")
        return self._ledger

    def state_dict(self) -> dict[str, Any]:
        """What a later server needs to go on; the model and the optimizer have state of their own."""
        return {"steps": self.steps, "workers": self.workers, "rule": self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned; with a folder, also with the records that it holds."""
        self.close()
        self.steps, self.workers, self._state = state["steps"], state["workers"], state["rule"]
        self._ledger = None

    def close(self) -> None:
        """Closes the files of the folder; the next step would open them again."""
        if self._journal is not None:
            self._journal.__exit__(None, None, None)
        self._journal = None

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What came

    def _num_workers(self, gradients: Gradients) -> int:
        size = len(gradients) if isinstance(gradients, Sized) else self.workers
        if size is None:
            raise ValueError(
                "A Server needs to know how many workers there are before the first of an iterator. "
                f"Found {type(gradients).__name__} without a length. Pass a list, or an object with __len__."
            )
        if self.workers is not None and size != self.workers:
            raise ValueError(
                f"A Server needs an entry for each of its {self.workers} workers at every step. Found {size}. "
                "Entry i is worker i: pass None for one that sent nothing."
            )
        if isinstance(gradients, Tensor) and gradients.shape != (size, self.problem.size):
            raise ValueError(
                f"A Server needs gradients as one tensor [workers, {self.problem.size}]. "
                f"Found shape {list(gradients.shape)}. zeno.flatten(model) makes a row of it."
            )
        if size == 0:
            raise ValueError("A Server needs at least one worker. Found no gradients.")
        return size

    def _aggregate(
        self, gradients: Gradients, workers: int, descent: Asked, errors: dict[int, str], clock: Clock
    ) -> Aggregate:
        """What the rule makes of what came; what was wrong with it goes into `errors`, by worker."""
        streamed = not isinstance(gradients, Tensor | list | tuple)
        if streamed and isinstance(self.rule, Zeno) and self.rule.plain:
            arrivals = Arrivals(self.rule, workers, descent)
            for worker, sent in self._one_by_one(gradients, workers, errors, clock):
                arrivals.add(worker, sent)
            return arrivals.result()
        if isinstance(gradients, Tensor):
            with clock("gradients"):
                candidates = gradients.detach().to(self.problem.flat)
                errors.update({i: NOT_FINITE for i, row in enumerate(candidates) if not all_finite(row)})
        else:
            if self._candidates is None or len(self._candidates) != workers:
                self._candidates = self.problem.flat.new_empty(workers, self.problem.size)
            candidates = self._candidates
            for worker, sent in self._one_by_one(gradients, workers, errors, clock):
                candidates[worker] = sent
            candidates[list(errors)] = torch.nan
        with clock("rule"):
            return self.rule(candidates, descent, self._state)

    def _one_by_one(
        self, gradients: Iterable[object], workers: int, errors: dict[int, str], clock: Clock
    ) -> Iterator[tuple[int, Tensor]]:
        """Each worker with its vector [d], once it was checked."""
        coming, parameters, like = iter(gradients), trainable(self.model), self.problem.flat
        for worker in range(workers):
            with clock("gradients"):
                vector = as_vector(next(coming, None), parameters, like)
            if isinstance(vector, str):
                errors[worker] = vector
            else:
                yield worker, vector
        if next(coming, None) is not None:
            raise ValueError(f"A Server needs an entry for each of its {workers} workers. Found more.")

    # The samples of its own

    def _oracles(self, x: Tensor, lr: float | Tensor) -> Oracles:
        usual = getattr(self.rule, "samples", getattr(self.rule, "batch_size", 4))
        return lambda number=0, size=usual: self.problem.at(x, lr, self._take_samples(size))

    def _take_samples(self, size: int) -> Batch:
        if self._samples is None:
            raise ValueError(f"{self.rule} needs samples of the server's own. Found data=None. Pass a DataLoader.")
        return self._samples.take(size)

    def _refresh(self) -> None:
        if self.problem.norms:
            with self._undisturbed() as x:
                self.problem.refresh(x, self._take_samples(STATISTICS_SAMPLES).inputs)

    # The model and its optimizer

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[Tensor]:
        """The model may be tried out inside; it has its parameters x [d] and its modes again afterwards."""
        x = self.problem.flat.clone()
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):  # scores need all digits
                yield x
        finally:
            self.problem.load(x)
            for module, training in modes:
                module.training = training

    def _take(self, update: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self.problem.parameters]
        for parameter, part in zip(self.problem.parameters, update.split(sizes), strict=True):
            parameter.grad = part.view(parameter.shape)
        self.optimizer.step()
        for parameter in self.problem.parameters:
            parameter.grad = None  # what comes next may be a worker's, and starts from nothing

    def _lrs(self) -> list[float]:
        """The learning rate of each trained parameter."""
        rates = {id(p): float(group["lr"]) for group in self.optimizer.param_groups for p in group["params"]}
        return [rates[id(parameter)] for parameter in self.problem.parameters]

    def _lr(self) -> float | Tensor:
        """One rate, or one for each number [d] where groups of the optimizer differ."""
        rates = self._lrs()
        if rates != self._rates[0]:
            lr: float | Tensor = rates[0]
            if len(set(rates)) > 1:
                parts = zip(rates, self.problem.parameters, strict=True)
                lr = torch.cat([p.detach().new_full((p.numel(),), rate) for rate, p in parts])
            self._rates = rates, lr
        return self._rates[1]

    def _check_unchanged(self) -> None:
        own = trainable(self.model).values()
        if [id(p) for p in own] != [id(p) for p in self.problem.parameters]:
            raise ValueError(
                "A Server needs the parameters that it was made with. Found that others are trained now. "
                "Make a new Server after freezing or replacing some; load_state_dict takes the old one's state."
            )
        kinds = {_kind(parameter) for parameter in own}
        if kinds != {self._kind}:
            raise ValueError(
                f"A Server needs the model where it was: {self._kind}. Found {', '.join(sorted(kinds))}. "
                "Make the Server after moving the model."
            )
        check_optimizer(self.model, self.optimizer)

    # What is written down

    def _write(
        self, workers: int, aggregate: Aggregate | None, skipped: str | None, errors: dict[int, str], clock: Clock
    ) -> None:
        if self._journal is None or self._ledger is None:
            earlier = self._earlier()
            settings = f"rule = {json.dumps(describe(self.rule, PARTS))}\nworkers = {workers}\n"
            self._journal = Journal(self._folder, settings, earlier, keep=False)
            self._ledger = self._ledger or ledger_of(earlier or (), workers)
        self.workers = workers
        self.record = record_of(self.steps, max(self._lrs()), aggregate, skipped, errors, seconds=clock.seconds)
        self._journal.append(self.record)
        self._ledger.add(self.record)
        self.steps += 1

    def _earlier(self) -> list[Record] | None:
        """The records that the folder holds of the steps before; None where this is the first."""
        if self._folder is None or self.steps == 0:
            return None
        found = read_whole(self._folder)[: self.steps]
        if len(found) < self.steps:
            raise ValueError(
                f"A Server that goes on after {self.steps} steps needs their records. Found {len(found)} in "
                f"{self._folder}. Name the folder they were written to, or a new one for a server that starts anew."
            )
        return found


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} on {tensor.device}"


def _reasons(errors: Mapping[int, str]) -> str:
    named = [f" Worker {worker} {reason}." for worker, reason in sorted(errors.items())]
    return "".join(named[:MOST_REASONS]) + (
        f" And {len(named) - MOST_REASONS} more." if len(named) > MOST_REASONS else ""
    )
