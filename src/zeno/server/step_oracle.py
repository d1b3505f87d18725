"""The oracle of one step, which keeps what the loss raises for the record."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from zeno.problem.dataset import generator
from zeno.problem.oracle import OWN_STATISTICS_FROM, LossOracle, half_gradients
from zeno.server.clock import Clock
from zeno.server.scorers import Scorer
from zeno.workers.checks import loss_raised
from zeno.workers.reply import ReplyError

if TYPE_CHECKING:
    from zeno.server.core import Core


@dataclass(eq=False)
class StepOracle:
    """The oracle of one step. Its samples are drawn for this step, and no worker gets them."""

    core: "Core"
    role: str  # what the samples are drawn for
    step: int
    x: Tensor  # [d]
    lr: float | Tensor
    clock: Clock = field(default_factory=Clock)
    scorer: Scorer | None = None  # scores candidates as they arrive
    received: Tensor | None = None  # [m, d], the candidates that the rule gets
    note: str | None = None  # about a mixture of candidates after which the loss raised
    _raised: dict[int, str] = field(default_factory=dict)  # what the loss raised after the candidate of a worker
    _scoring: bool = False  # whether one has arrived
    _preparing: Future[None] | None = None  # the rule asks for what no candidate changes, in another thread

    def prepare(self, threads: Executor) -> None:
        """Lets the rule ask for what no candidate changes, while the workers compute. Only for workers elsewhere.

        The model is in use until `finish`.
        """
        self._preparing = threads.submit(self.core.rule.prepare, self._samples, self.core.state)

    def finish(self) -> None:
        """Waits for this. What it raised is raised again when the rule asks for it."""
        if self._preparing is not None:
            wait([self._preparing])
            self._preparing = None

    def arrived(self, worker: int, candidates: Tensor) -> None:
        """The candidate of this worker is in its row of the candidates [m, d] and may be scored."""
        if self.scorer is not None:
            if not self._scoring:
                self.scorer.begin(self._samples.all, len(candidates))
                self._scoring = True
            self.scorer.add(worker, candidates[worker])

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:  # [m]
        """Anything but the candidates as received may be a mixture of several."""
        is_received = candidates is self.received
        return self.descents_of(candidates, range(len(candidates)) if is_received else [None] * len(candidates))

    def descents_of(self, candidates: Tensor | Sequence[Tensor], senders: Sequence[int | None]) -> Tensor:  # [n]
        with self.clock("scores"):
            self.finish()
            if self.scorer is not None and self._scoring:
                found, raised = self.scorer.descents()
                senders = range(len(found))
            else:
                found, raised = self._samples.all.trials(candidates)
        for row, text in sorted(raised.items()):
            self._keep(senders[row], text)
        return found.to(self.x.device)

    def _keep(self, sender: int | None, text: str) -> None:
        if sender is not None:
            self._raised[sender] = text
        elif self.note is None:
            self.note = f"A mixture of candidates was not used: the loss after it raises {text}"

    def take_errors(self) -> dict[int, ReplyError]:
        """The workers after whose candidates the loss has raised since the last call."""
        raised, self._raised = self._raised, {}
        return {worker: loss_raised(text) for worker, text in raised.items()}

    def gradient(self, after: Tensor | None = None) -> Tensor:  # [d]
        with self.clock("scores"):
            self.finish()
            if after is None:
                return self._samples.gradient()
            found, raised = self._samples.all.gradient_after(after)
        if raised is not None:
            self._keep(None, raised)
        return found

    def half_gradients(self) -> Tensor:  # [2, d]
        with self.clock("scores"):
            self.finish()
            return self._samples.half_gradients()

    @cached_property
    def _samples(self) -> "StepSamples":
        return StepSamples(self.core, self.role, self.step, self.x, self.lr)


@dataclass(frozen=True, eq=False)
class StepSamples:
    """The loss on the server's samples of one step, and its gradients, each computed once."""

    core: "Core"
    role: str
    step: int
    x: Tensor  # [d]
    lr: float | Tensor

    def descents(self, candidates: Tensor | Sequence[Tensor]) -> Tensor:  # [m]
        return self.all.descents(candidates)

    def gradient(self, after: Tensor | None = None) -> Tensor:  # [d]
        """The server's own: a displacement if those of the workers are, which have the scale of local training."""
        if after is None and self.core.local_training is not None:
            return self.half_gradients().mean(dim=0)
        return self.all.gradient(after)

    def half_gradients(self) -> Tensor:  # [2, d]
        return self._half_gradients

    @cached_property
    def all(self) -> LossOracle:
        """The loss on all samples of the step, without halves."""
        return self._on(self._number)

    @cached_property
    def _half_gradients(self) -> Tensor:
        local = self.core.local_training
        batches = 1 if local is None else local.steps  # each as large as that of a gradient
        size = max(1, self._number // 2)
        return half_gradients(*(self._on(size, half, batches) for half in (0, 1)), local=local)

    @property
    def _number(self) -> int:
        samples = self.core.rule.samples
        if samples < 1:
            raise ValueError(
                f"A rule that asks its oracle needs samples of the server. Found samples={samples} in "
                f"{self.core.rule}. Set the attribute `samples` of the rule."
            )
        return samples

    def _on(self, samples: int, half: int | None = None, batches: int = 1) -> LossOracle:
        if samples < OWN_STATISTICS_FROM:
            self.core.statistics.refresh(self.x)
        batch = self.core.samples.take(batches * samples, self.role, self.step, half)
        dropout = generator(self.core.seed, f"{self.role}, dropout", half or 0, self.step)
        return self.core.problem.at(self.x, self.lr, batch, seed=int(dropout.integers(2**63)))
