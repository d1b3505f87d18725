"""The server of your own training loop: pass in the workers' gradients; the model takes one robust step.

    server = zeno.Server(model, loss, optimizer, data, rule)
    aggregate = server.step(gradients)  # a list, or by the names of the workers

How gradients reach the server is up to you. Each one is checked before it is used: an entry that is missing, of the
wrong shape or type, or not finite is a fault of that worker only. Candidates are tried on the model itself, with the
optimizer's current learning rates; the model is restored afterwards, and then takes the optimizer's step.

Shapes: m workers, d trainable parameters, n samples.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem.flat import unflatten
from zeno.problem.losses import Loss, takes_batch
from zeno.problem.problem import Problem
from zeno.records.ledger import FAILURE_RATE, Ledger
from zeno.records.record import Record, finite
from zeno.records.row import Row, call
from zeno.rules.rule import Aggregate, Rule
from zeno.rules.zeno_auto import ZenoAuto
from zeno.server.core import Core, Step, most_resting
from zeno.server.gradients import Gradients, as_entries, flat_gradient, num_workers
from zeno.server.members import Members, members
from zeno.server.recorder import Recorder, Watcher
from zeno.server.requirements import check, check_optimizer, check_rho, check_unchanged, identity
from zeno.server.samples import LoaderSamples
from zeno.workers.reply import Reply, ReplyError

MAX_REASONS = 3  # in an error


class Server:
    """Scores the workers' gradients on the server's samples and applies the rule's update to the model.

    A `loss` whose first parameter is named `model` is called as `loss(model, batch)`, with a batch as `data` yields it:
    tensors with one row per sample, in dicts, lists, tuples or dataclasses. Any other is called as `loss(outputs,
    targets)`, and batches are (inputs, targets). Both return the mean over the samples.

    `data` is restarted whenever it ends, as a `DataLoader` can be. The server takes as many samples as the rule needs,
    whatever the batch size; pass None for a rule that needs none. With a `folder`, a record of every step is written
    there, for `zeno suspects`, `zeno report` and `zeno watch`. `watchers`, such as `zeno.TensorBoard` and
    `zeno.Metrics`, are called with every record and the ledger after it.

    `on_suspect` is called with the ledger's row of every worker that becomes suspect. With `quarantine`, the gradients
    of suspects are not used for a while; `resting` says whose. A worker may fail at `failure_rate` of the steps.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,  # loss(model, batch), or loss(outputs [n, ...], targets [n, ...])
        optimizer: Optimizer,
        data: Iterable[Any] | None,
        rule: Rule | None = None,  # None: ZenoAuto()
        *,
        folder: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
        on_suspect: Callable[[Row], object] | None = None,
        quarantine: bool = False,
        failure_rate: float = FAILURE_RATE,
    ) -> None:
        rule = ZenoAuto() if rule is None else rule
        check(model, optimizer, rule, data)
        nested = takes_batch(loss)
        self.model = model
        self.optimizer = optimizer
        self.rule = rule
        self.problem = Problem(model, loss)
        self.workers: int | None = None  # m, known from the first step on
        self.names: list[str] = []  # of the workers, if gradients are passed by name
        self.steps = 0  # taken or skipped
        self.record: Record | None = None  # of the last step
        device = self.problem.flat.device  # the parameters are views of `flat` from here on
        samples = LoaderSamples(data, device, rule, nested)
        self.core = Core(self.problem, rule, samples)
        self._recorder = Recorder(None if folder is None else Path(folder), rule, watchers, failure_rate)
        self._on_suspect = on_suspect
        self._quarantine = quarantine
        self._x: Tensor | None = None  # [d], where the parameters are kept while candidates are tried
        self._rates: list[float] = []  # of each parameter
        self._lr: float | Tensor = 0.0  # the same as one number, or one for each coordinate [d]
        self._warned_of_rho = self._warned_of_nobody = False
        self._read_rates()
        self._refresh_statistics()

    def step(self, gradients: Gradients) -> Aggregate:
        """Takes one step of the model from the workers' gradients; returns who was kept, with which scores.

        Worker i is entry i, at every step: None where nothing was received. A list or a tensor is scored at once. Any
        other iterable is read one entry at a time, and then `Zeno(trim=b)` keeps only the best m - b in memory; at the
        first step it needs a length.

        A mapping has the entries by the names of the workers, `{"gpu-07": gradient}`. They may join and leave between
        steps: a worker whose name is not there was not asked, and one that sent nothing is None. Worker i of the
        aggregate is `server.names[i]`, in the order in which the names first appeared.

        Raises `zeno.TooFewUsable`, and leaves the model unchanged, if more entries are unusable than the rule
        tolerates.
        """
        check_unchanged(self.model, self.problem)
        check_optimizer(self.model, self.optimizer)
        self._recorder.pass_on()
        resting = self.resting
        if isinstance(gradients, Mapping):  # who rests is still one of the workers that the rule counts
            gradients = {**gradients, **{name: None for name in resting if name not in gradients}}
        there = self._members(gradients)
        gradients = as_entries(list(gradients.values()) if isinstance(gradients, Mapping) else gradients)
        workers = num_workers(gradients, self.workers if there is None else len(there.there), self.problem.size)
        self._recorder.open(workers if there is None else None, self.steps)
        self._read_rates()
        with self._model_restored() as x:
            self.problem.load_buffers(self._statistics)  # the caller may have used the model since
            streaming = not isinstance(gradients, Tensor | list | tuple)
            step = Step(self.core, self.steps, workers, x, self._lr, streaming, there)
            step.lr = max(self._rates)
            with step.clock("gradients"):
                names = range(workers) if there is None else [there.names[worker] for worker in there.there]
                self._receive(step, gradients, {i for i, name in enumerate(names) if str(name) in resting})
            aggregate = step.run_rule()
            if aggregate is not None:
                self.core.statistics.draw(self.steps + 1)  # whatever can fail does so before the step
        if aggregate is None:
            assert step.failure is not None
            step.failure.args = (f"{step.failure}{_reasons(step, there)}",)
            with self._written(step):
                pass  # the model does not change
            raise step.failure
        if not self._warned_of_nobody and len(step.errors) + len(step.unasked) == len(aggregate.weights):
            self._warned_of_nobody = True
            logging.getLogger("zeno").warning(
                "No worker sent a usable gradient at step %s.%s The server trains on its own samples alone.",
                self.steps,
                _reasons(step, there),
            )
        with self._written(step):
            step.update(self._apply)
            self._refresh_statistics()
        return aggregate

    def log(self, *, loss: float | None = None, accuracy: float | None = None) -> None:
        """Adds what was measured after the last step to its record: a loss, an accuracy from 0 to 1, or both.

        They are the curves of `zeno report` and `zeno watch`, and watchers get them too.
        """
        if self.record is None:
            raise ValueError("A Server logs what was measured after a step. Found none yet. Call step first.")
        if loss is None and accuracy is None:
            raise ValueError("A Server logs a loss, an accuracy, or both. Found neither. Pass loss= or accuracy=.")
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise ValueError(f"A Server logs the accuracy as a number from 0 to 1. Found {float(accuracy)}.")
        record = self.record
        if loss is not None:
            record = replace(record, evaluated=True, train_loss=finite([float(loss)])[0])
        if accuracy is not None:
            record = replace(record, accuracy=float(accuracy))
        self._recorder.open(None if self.names else self.workers, self.steps)
        self._recorder.write_again(record)
        self.record = record

    @property
    def resting(self) -> list[str]:
        """The workers in quarantine at the next step, by name: their gradients need not be computed."""
        ledger = self._recorder.ledger
        if ledger is None or not self._quarantine:
            return []
        return [ledger.names[worker] for worker in ledger.resting(self.steps, most_resting(self.rule, ledger.num_here))]

    @property
    def ledger(self) -> Ledger:
        """What is known about each worker so far, with verdicts: `server.ledger.suspects`."""
        if self._recorder.ledger is None:
            raise ValueError("A Server has a ledger from its first step on. Found none yet.")
        return self._recorder.ledger

    def state_dict(self) -> dict[str, Any]:
        """What another server needs to continue, besides the states of the model and the optimizer."""
        ledger = self._recorder.ledger
        return {
            "steps": self.steps,
            "workers": self.workers,
            "names": list(self.names),
            "rule": self.core.state,
            "of": identity(self.rule),
            "ledger": None if ledger is None else ledger.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned; load the states of the model and the optimizer first.

        A server with a folder needs the records of the same steps there. If `failure_rate` was another one, the new
        one applies from here on; with a folder, also to the steps before.
        """
        own = identity(self.rule)
        if state["of"] != own:
            raise ValueError(f"The state belongs to {state['of']}. Found {own}. Create the Server with the same rule.")
        self._recorder.continue_from(None if state["ledger"] is None else Ledger.from_state_dict(state["ledger"]))
        self.steps, self.workers, self.core.state = state["steps"], state["workers"], state["rule"]
        self.names, self.record = list(state["names"]), None
        self.core.statistics.due = self.steps
        self._refresh_statistics()

    def close(self) -> None:
        """Closes the files of the folder, which the next step would open again, and the watchers."""
        self._recorder.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _members(self, gradients: Gradients) -> Members | None:
        """Who is there, if gradients are passed by name. Raises if they were passed in another form before."""
        there = None
        if isinstance(gradients, Mapping):
            there = members(gradients, self.names, dict(self.model.named_parameters()))
        if self.workers is not None and (there is None) == bool(self.names):
            now, before = ("in order", "by name") if there is None else ("by name", "in order")
            raise ValueError(
                f"A Server needs gradients in the same form at every step. Found workers {now}, which were {before} "
                "at the steps before."
            )
        return there

    def _receive(self, step: Step, gradients: Iterable[object], resting: set[int]) -> None:
        """Receives the entries; those of workers at rest only if the rule has too few without them.

        Who rests need not send anything: then None is no fault.
        """
        asked = set(range(step.workers)) - resting
        step.receive(self._replies(gradients, step.workers), asked)
        need = max(1, step.workers - self.rule.most_faulty(step.workers))
        if resting and len(asked) - len(step.errors) < need and isinstance(gradients, Tensor | list | tuple):
            tried = {worker for worker in resting if gradients[worker] is not None}
            step.receive(self._replies(gradients, step.workers), tried)
            resting = resting - tried
        step.unasked = sorted(resting)

    def _replies(self, gradients: Iterable[object], workers: int) -> Iterator[Reply]:
        """Each worker's entry as a reply with a flat vector [d]."""
        entries, parameters, like = iter(gradients), dict(self.model.named_parameters()), self.problem.flat
        for worker in range(workers):
            found = flat_gradient(next(entries, None), parameters, like)
            gradient, error = (None, found) if isinstance(found, ReplyError) else (found, None)
            yield Reply(worker, self.steps, gradient, error)
        if next(entries, None) is not None:
            raise ValueError(f"A Server needs one entry for each of its {workers} workers. Found more.")

    @contextlib.contextmanager
    def _model_restored(self) -> Iterator[Tensor]:
        """The model may be changed inside; its parameters x [d] and its modes are restored afterwards."""
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

    def _apply(self, update: Tensor | None) -> None:
        """The optimizer's step. Hooks that clip or scale gradients work on a copy of the update."""
        assert update is not None
        for parameter, part in zip(
            self.problem.parameters, unflatten(update.clone(), self.model).values(), strict=True
        ):
            parameter.grad = part
        self.optimizer.step()
        for parameter in self.problem.parameters:
            parameter.grad = None  # the next backward may be a worker's, and starts from zero

    def _refresh_statistics(self) -> None:
        """At every step, unlike in a run: the caller may read the model's running statistics at any time."""
        if self.problem.norms:
            with self._model_restored() as x:
                self.core.statistics.refresh(x)
        own = {id(buffer) for norm in self.problem.norms for buffer in norm.buffers()}
        self._statistics = {name: b.clone() for name, b in self.problem.buffers.items() if id(b) in own}

    def _read_rates(self) -> None:
        """Reads the optimizer's current learning rates."""
        of = {id(p): float(group["lr"]) for group in self.optimizer.param_groups for p in group["params"]}
        rates = [of[id(parameter)] for parameter in self.problem.parameters]
        if rates == self._rates:
            return
        self._rates, self._lr = rates, rates[0]
        if len(set(rates)) > 1:
            parts = zip(rates, self.problem.parameters, strict=True)
            self._lr = torch.cat([p.detach().new_full((p.numel(),), rate) for rate, p in parts])
        self._warned_of_rho = self._warned_of_rho or check_rho(self.rule, rates)

    @contextlib.contextmanager
    def _written(self, step: Step) -> Iterator[None]:
        """Writes the record of a step before the model takes it inside: a full disk raises, and no step is taken."""
        members = step.members
        record = step.record(joined=[] if members is None else members.joined)
        with self._recorder.written(record):
            yield
        self.record = record
        self.names = [] if members is None else members.names
        self.workers = step.workers if members is None else len(members.names)
        self.steps += 1
        if self._on_suspect is not None:
            for worker in self._recorder.named:
                call(self._on_suspect, self.ledger.rows[worker])


def _reasons(step: Step, there: Members | None) -> str:
    """What was wrong with the replies of the first few workers, and with mixtures of them."""
    names = {worker: worker if there is None else there.names[worker] for worker in sorted(step.errors)}
    named = [f" Worker {name} {step.errors[worker].text}." for worker, name in names.items()]
    more = f" And {len(named) - MAX_REASONS} more." if len(named) > MAX_REASONS else ""
    return "".join(named[:MAX_REASONS]) + more + ("" if step.note is None else f" {step.note}.")
