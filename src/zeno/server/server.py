"""The server of your own loop: what the workers sent goes in, the model has taken the step when it comes out.

    server = zeno.Server(model, loss, optimizer, data, rule)
    aggregate = server.step(gradients)

How gradients come to the server is yours. Whatever a worker sent is checked before it is used: what is missing, of the
wrong shape or type, or not finite is a fault of that worker only. Candidates are tried on the model itself, with the
learning rates that the optimizer has now; the model is as it was afterwards, and then takes the step of the optimizer.

Shapes: m workers, d parameters that are trained, n samples.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem import Loss, Problem
from zeno.problem.dataset import Batch
from zeno.problem.flat import trainable
from zeno.records.folder import Record
from zeno.records.ledger import Ledger
from zeno.rules import Aggregate, Arrivals, Rule, TooFewUsable, Zeno
from zeno.rules.linalg.passes import all_finite
from zeno.server.checks import Gradients, as_vector, number_of
from zeno.server.core import NOT_FINITE, STATISTICS_SAMPLES, Asked, Clock, Oracles, record_of, samples_for
from zeno.server.recorder import Logbook
from zeno.server.requirements import check, check_optimizer, check_rho, check_unchanged
from zeno.server.samples import Samples

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
        check(model, loss, optimizer, rule, data)
        self.model = model
        self.optimizer = optimizer
        self.rule = rule
        self.problem = Problem(model, loss)
        self.workers: int | None = None  # m, known from the first step on
        self.steps = 0  # that were made or skipped
        self.record: Record | None = None  # of the last step that this server made
        device = self.problem.flat.device  # the parameters are views of `flat` from here on
        self._samples = None if data is None else Samples(data, device)
        self._logbook = Logbook(None if folder is None else Path(folder), rule)
        self._state: object = None  # the rule's memory
        self._candidates: Tensor | None = None  # [m, d]
        self._x: Tensor | None = None  # [d], where the parameters are kept while candidates are tried
        self._rates: list[float] = []  # of each parameter
        self._lr: float | Tensor = 0.0  # the same as one number, or as one for each number [d]
        self._rho_was_said = False
        self._read_rates()
        self._refresh(self._samples_for_statistics())

    def step(self, gradients: Gradients) -> Aggregate:
        """One step of the model from what the workers sent; says who was kept, and with which scores.

        Worker i is entry i, at every step: None where nothing came. A list or a tensor is scored at once. Any other
        iterable is taken one by one, and then `Zeno(trim=b)` holds only the best m - b of them; at the first step it
        needs a length.

        Raises `zeno.TooFewUsable`, and the model stays as it was, where more entries are unusable than the rule bears.
        """
        check_unchanged(self.model, self.problem)
        check_optimizer(self.model, self.optimizer)
        workers = number_of(gradients, self.workers, self.problem.size)
        self._logbook.open(workers, self.steps)
        self._read_rates()
        clock, errors = Clock(), dict[int, str]()
        with self._undisturbed() as x:
            self.problem.load_buffers(self._statistics)  # somebody may have used the model
            descent = Asked(self._lr, self._oracles(x), clock)
            try:
                aggregate = self._aggregate(gradients, workers, descent, errors, clock)
            except TooFewUsable as error:
                error.args = (f"{error}{_reasons(errors)}",)
                self._write(workers, None, str(error), errors, clock)
                raise
            samples = self._samples_for_statistics()  # whatever can fail does so before the step
        with clock("update"):
            self._take(aggregate.update)
            self._refresh(samples)
        self._state = aggregate.state
        self._write(workers, aggregate, None, errors, clock)
        return aggregate

    @property
    def ledger(self) -> Ledger:
        """What is known of each worker so far, with verdicts: `server.ledger.suspects`."""
        if self._logbook.ledger is None and self.workers is not None and self._logbook.folder is not None:
            self._logbook.open(self.workers, self.steps)
        if self._logbook.ledger is None:
            raise ValueError("A Server has a ledger from its first step on. Found none yet.")
        return self._logbook.ledger

    def state_dict(self) -> dict[str, Any]:
        """What a later server needs to go on; the model and the optimizer have state of their own.

        The ledger is no part of it: it goes on from the records in the folder, or begins anew where there is none.
        """
        return {"steps": self.steps, "workers": self.workers, "rule": self._state, "of": repr(self.rule)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state_dict` returned; load the model's and the optimizer's before."""
        own = repr(self.rule)
        if state["of"] != own and " at 0x" not in own:  # which is an object of the user's own that has no text
            raise ValueError(f"The state is that of {state['of']}. Found {own}. Make the Server with the same rule.")
        self._logbook.forget()
        self.steps, self.workers, self._state = state["steps"], state["workers"], state["rule"]
        self._refresh(self._samples_for_statistics())

    def close(self) -> None:
        """Closes the files of the folder; the next step would open them again."""
        self._logbook.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _oracles(self, x: Tensor) -> Oracles:
        usual = samples_for(self.rule)
        return lambda number=0, size=usual: self.problem.at(x, self._lr, self._draw(size))

    def _draw(self, size: int) -> Batch:
        if self._samples is None:
            raise ValueError(f"{self.rule} needs samples of the server's own. Found data=None. Pass a DataLoader.")
        return self._samples.take(size)

    def _samples_for_statistics(self) -> Tensor | None:
        return self._draw(STATISTICS_SAMPLES).inputs if self.problem.norms else None

    def _refresh(self, inputs: Tensor | None) -> None:
        """Sets the running statistics, if there are any, to those of these samples, and keeps them."""
        if inputs is not None:
            with self._undisturbed() as x:
                self.problem.refresh(x, inputs)
        own = {id(buffer) for norm in self.problem.norms for buffer in norm.buffers()}
        self._statistics = {name: b.clone() for name, b in self.problem.buffers.items() if id(b) in own}

    # The model and its optimizer

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[Tensor]:
        """The model may be tried out inside; it has its parameters x [d] and its modes again afterwards."""
        x = self._x = self.problem.flat.clone() if self._x is None else self._x.copy_(self.problem.flat)
        modes = [(module, module.training) for module in self.model.modules()]
        full_precision = torch.autocast(x.device.type, enabled=False)  # scores need all digits
        try:
            with torch.inference_mode(False), torch.enable_grad(), full_precision:
                yield x
        finally:
            self.problem.load(x)
            for module, training in modes:
                module.training = training

    def _take(self, update: Tensor) -> None:
        """The step of the optimizer; what clips or scales gradients on the way leaves the update alone."""
        sizes = [parameter.numel() for parameter in self.problem.parameters]
        for parameter, part in zip(self.problem.parameters, update.clone().split(sizes), strict=True):
            parameter.grad = part.view(parameter.shape)
        self.optimizer.step()
        for parameter in self.problem.parameters:
            parameter.grad = None  # what comes next may be a worker's, and starts from nothing

    def _read_rates(self) -> None:
        """The learning rates that the optimizer has now."""
        of = {id(p): float(group["lr"]) for group in self.optimizer.param_groups for p in group["params"]}
        rates = [of[id(parameter)] for parameter in self.problem.parameters]
        if rates == self._rates:
            return
        self._rates, self._lr = rates, rates[0]
        if len(set(rates)) > 1:
            parts = zip(rates, self.problem.parameters, strict=True)
            self._lr = torch.cat([p.detach().new_full((p.numel(),), rate) for rate, p in parts])
        self._rho_was_said = self._rho_was_said or check_rho(self.rule, rates)

    def _write(
        self, workers: int, aggregate: Aggregate | None, skipped: str | None, errors: dict[int, str], clock: Clock
    ) -> None:
        self.record = record_of(self.steps, max(self._rates), aggregate, skipped, errors, seconds=clock.seconds)
        self._logbook.write(self.record)
        self.workers = workers
        self.steps += 1


def _reasons(errors: Mapping[int, str]) -> str:
    named = [f" Worker {worker} {reason}." for worker, reason in sorted(errors.items())]
    more = f" And {len(named) - MOST_REASONS} more." if len(named) > MOST_REASONS else ""
    return "".join(named[:MOST_REASONS]) + more
