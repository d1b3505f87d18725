"""Guard: a job with DistributedDataParallel in which ranks that compute wrongly do no harm, and are named.

    model = DistributedDataParallel(model)
    guard = zeno.distributed.Guard(model, loss, data if rank == 0 else None)
    ...
    loss(model(inputs), targets).backward()  # as before: afterwards every rank has the same gradients
    optimizer.step()

Sketches are enough to find weights. So at every backward each rank sketches its gradient, and all ranks gather the
sketches, which are short, and find the same weights: equal ones, unless there is a reason (see `weights`). Then each
rank scales its gradient by its weight, and DDP's all-reduce adds them up. A rank of weight 0 puts in zeros, whatever it
has: 0 * NaN is NaN. The rank with the samples computes the server's own gradient every few steps; only its sketches are
sent, and its share of the update is added to what that rank puts in.

This is for ranks that compute wrongly but follow the protocol: poisoned data, a bad GPU, a bug. A rank that lies about
its sketch can put anything into an all-reduce. A rank that dies ends the group, as in DDP.

Shapes: m ranks, d trainable parameters, k numbers in a sketch.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from zeno.problem.flat import trainable
from zeno.problem.losses import Loss
from zeno.records.ledger import FAILURE_RATE, Ledger
from zeno.records.record import Record, finite, rounded
from zeno.records.row import Row, call
from zeno.rules.linalg.sketch import Sketch
from zeno.rules.zeno_auto import Comparison, Memory, ZenoAuto, own_gradient
from zeno.server.clock import Clock
from zeno.server.distributed.drift import DRIFTED, Replicas
from zeno.server.distributed.lengths import Lengths
from zeno.server.distributed.own_gradient import OwnGradient
from zeno.server.distributed.ranks import Ranks
from zeno.server.distributed.requirements import CALLER, check
from zeno.server.distributed.weights import Agreement, weigh
from zeno.server.recorder import Recorder, Watcher
from zeno.server.requirements import identity
from zeno.workers.checks import NOT_FINITE
from zeno.workers.reply import ReplyError

if TYPE_CHECKING:  # some builds of torch lack it
    from torch._C._distributed_c10d import GradBucket, Work

SKETCH = 4096  # numbers: 16 KB from every rank at every step
SIGNS = 0  # the seed of the signs: no secret, ranks are not malicious
SOME_EVIDENCE = 3.0  # against a rank, that a healthy one has with a probability of at most 1/3, ever
OVERFLOWED = "no gradient is finite: the loss scale is too high"


class Guard:
    """Weighs the gradients of the ranks in DDP's all-reduce, and keeps a ledger of the ranks.

    Weights are equal as long as the ranks agree, 0 for suspects, and those of the `rule` where ranks disagree.

    `model` is the DistributedDataParallel, `loss` as for `zeno.Server`. One rank has `data`, samples that are trusted;
    the others pass None. Every `every` steps it computes gradients on `rule.samples` of them.

    By default the all-reduce starts when the weights are known, after the last bucket of backward. With `overlap` each
    bucket is sent while backward goes on, with the weights of the step before; a rank sends zeros in place of a bucket
    that is not finite, or many times as long as usual. With `act=False` training stays what it was, and the ledger only
    names suspects.

    Every `compare_every` steps (0: never) the ranks compare their parameters. One that differs has failed. Unless
    `act=False`, it gets the parameters of the others; its optimizer keeps its own state. Its gradient of this step is
    not used, or has already been sent with `overlap`.

    `scale` is what the loss is multiplied by before backward: a number, as for gradients that are accumulated and not
    divided, or the `GradScaler`. With a `folder`, rank 0 writes a record of every step for `zeno suspects`, `zeno
    report` and `zeno watch`. `watchers` and `on_suspect`, as those of `zeno.Server`, are called on rank 0. A rank may
    fail at `failure_rate` of the steps. `similar_data` says that all ranks draw from the same data; with shards that
    differ in kind, pass False: fewer faults are found then.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        loss: Loss,  # loss(model, batch), or loss(outputs [n, ...], targets [n, ...])
        data: Iterable[Any] | None,
        rule: ZenoAuto | None = None,  # None: ZenoAuto(sketch=4096)
        *,
        overlap: bool = False,
        act: bool = True,
        every: int = 4,
        compare_every: int = 20,
        scale: float | GradScaler = 1.0,
        folder: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
        on_suspect: Callable[[Row], object] | None = None,
        failure_rate: float = FAILURE_RATE,
        similar_data: bool = True,
    ) -> None:
        check(model, rule, every, compare_every, scale)
        self.model = model
        self.rule = ZenoAuto(sketch=SKETCH) if rule is None else rule
        self.overlap, self.act = overlap, act
        self.every, self.compare_every = every, compare_every
        self.scale = scale
        self.steps = 0  # backward passes with an all-reduce
        self.record: Record | None = None  # of the last step
        parameters = trainable(model.module)
        self._ranks = Ranks(model.process_group, next(iter(parameters.values())), CALLER)
        self._ranks.compare(self._description(parameters))
        self._new_machines = self._ranks.machines()  # that are on no record yet
        self._with_data = self._rank_with(data)
        self._own = None if data is None else OwnGradient(model.module, loss, data, self.rule)
        self._replicas = Replicas(self._ranks, model.module, self._with_data)
        sizes = [parameter.numel() for parameter in parameters.values()]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self._starts = dict(zip(parameters.values(), starts, strict=True))  # of each parameter among d coordinates
        self._k = min(self.rule.sketch, sum(sizes))
        self._memory = Memory.new(self._ranks.size, self._k, SIGNS, torch.zeros(0))
        self._agreement = Agreement()
        self._own_at: int | None = None  # the step at which the own gradient was computed
        self._own_gradients = torch.zeros(0)  # [2, d], on the rank that has the samples
        self._own_sketches = torch.zeros(2, self._k)  # their sketches, on all ranks
        self._weights: Tensor | None = None  # [m + 1] of the ranks and of the own gradient, found at the last step
        self._finite_at = [0.0] * self._ranks.size  # the highest loss scale at which a rank's gradient was finite
        self._lengths = Lengths()
        self._backward = _Backward()
        here = self._ranks.rank == 0
        path = Path(folder) if folder is not None and here else None
        self._recorder = Recorder(path, self.rule, watchers if here else (), failure_rate, similar_data)
        self._on_suspect = on_suspect if here else None
        self._register()

    @property
    def ledger(self) -> Ledger:
        """What is known about each rank so far, with verdicts: `guard.ledger.suspects`. The same on all ranks."""
        if self._recorder.ledger is None:
            raise ValueError("A Guard has a ledger from the first backward on. Found none yet.")
        return self._recorder.ledger

    def state_dict(self) -> dict[str, Any]:
        """What a new Guard needs to continue, besides the states of the model and the optimizer; equal on all ranks."""
        ledger = self._recorder.ledger
        return {
            "steps": self.steps,
            "ranks": self._ranks.size,
            "of": identity(self.rule),
            "memory": vars(self._memory),
            "agreement": dict(vars(self._agreement)),
            "finite_at": list(self._finite_at),
            "ledger": None if ledger is None else ledger.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state_dict` returned; with a folder, it needs the records of the same steps there."""
        own = [identity(self.rule), self._ranks.size]
        if [state["of"], state["ranks"]] != own:
            raise ValueError(
                f"The state belongs to {state['of']} and {state['ranks']} ranks. Found {own[0]} and {own[1]}. Start as "
                "many ranks as before, with the same rule, or begin with a new Guard."
            )
        self._recorder.continue_from(None if state["ledger"] is None else Ledger.from_state_dict(state["ledger"]))
        self.steps, self.record = state["steps"], None
        self._memory, self._finite_at = Memory(**state["memory"]), list(state["finite_at"])
        vars(self._agreement).update(state["agreement"])
        self._weights = self._own_at = None  # the next step is exact, and computes the own gradient

    def close(self) -> None:
        """Closes the files of the folder, which the next step would open again, and the watchers."""
        self._recorder.close()

    # The setup

    def _description(self, parameters: Mapping[str, nn.Parameter]) -> list[str]:
        """What all ranks must have in common, in lines."""
        settings = f"overlap={self.overlap}, act={self.act}, every={self.every}, compare_every={self.compare_every}"
        return [str(self.rule), settings, *(f"{name} {list(p.shape)} {p.dtype}" for name, p in parameters.items())]

    def _rank_with(self, data: object) -> int:
        having = [rank for rank, has in enumerate(self._ranks.gather_bytes(bytes([data is not None]))) if has[0]]
        if len(having) != 1:
            found = f"them on ranks {', '.join(map(str, having))}" if having else "none"
            raise ValueError(
                f"{CALLER} needs samples that are trusted on one rank. Found {found}. Pass `data if rank == 0 else "
                "None`."
            )
        return having[0]

    def _register(self) -> None:
        try:
            self.model.register_comm_hook(None, lambda state, bucket: self._receive(bucket))
        except RuntimeError as error:
            text = str(error).rstrip(".")
            raise ValueError(
                f"{CALLER} is the communication hook of its model, and there can be one. Found another: {text}. "
                "Leave out the other register_comm_hook."
            ) from error

    # The steps

    def _receive(self, bucket: "GradBucket") -> "Future[Tensor]":
        """Called by DDP with each bucket of gradients, in order, as soon as backward has computed it."""
        if bucket.index() == 0:
            self._begin()
        now, buffer = self._backward, bucket.buffer()
        gradients: Gradients = dict(zip(bucket.parameters(), bucket.gradients(), strict=True))  # type: ignore[arg-type]
        weights = self._weights_ahead()
        factor = 1.0 if weights is None else float(weights[self._ranks.rank])
        with now.clock("sketch"):
            part = self._sketch_of(gradients, buffer, factor)
            now.sketch = now.sketch + part
        future: Future[Tensor] = Future(devices=[buffer.device]) if buffer.is_cuda else Future()
        if weights is not None:
            if self.act and not self._is_usual(part, bucket.index(), buffer):
                self._leave_out(buffer, part)
            self._add_own_share(gradients, weights)
            self._send(buffer, future)
        else:
            now.waiting.append((gradients, buffer, future))
        if bucket.is_last():
            self._finish()
        return future

    def _begin(self) -> None:
        if self.model._join_config.enable:
            raise ValueError(f"{CALLER} needs all ranks at every step. Found DDP's join(), which lets some leave.")
        self._recorder.pass_on()
        self._recorder.open(self._ranks.size, self.steps)
        self._backward = _Backward(scale=self._current_scale())

    def _finish(self) -> None:
        """After the last bucket: finds the weights, sends what waits for them, and writes everything down."""
        now = self._backward
        if self._own_at is None or self.steps - self._own_at >= self.every:
            with now.clock("own gradient"):
                self._compute_own_gradient()
        with now.clock("weights"):
            is_due = self.compare_every > 0 and (self.steps + 1) % self.compare_every == 0
            drifted = self._replicas.drifted() if is_due else []
            sketches = torch.stack(self._ranks.gather(now.sketch)).cpu().double()  # [m, k]
            unusable = (~sketches.isfinite().all(dim=1)).nonzero().flatten().tolist()
            overflowed = self._overflowed(unusable)
            sketches[drifted] = torch.nan
            compared = Comparison.of(self._memory, self.rule.memory, sketches, self._own_sketches.double())
            weights, memory = weigh(compared, self._trust(), self._agreement)
        ahead = self._weights_ahead()
        used = weights if ahead is None else ahead  # with which buckets have been sent
        with now.clock("all-reduce"):
            self._send_waiting(used, overflowed)
            for work, buffer, future in now.sent:
                work.wait()
                future.set_result(buffer)
            if drifted and self.act:
                self._replicas.repair()
        if not overflowed:
            self._memory, self._weights = memory, weights
        errors = {**dict.fromkeys(unusable, NOT_FINITE), **dict.fromkeys(drifted, DRIFTED)}
        record = _record(self.steps, compared, None if overflowed else used, {} if overflowed else errors, now)
        self._write(replace(record, machines=self._new_machines))
        self._new_machines = {}
        self._warn_of(drifted)

    def _send_waiting(self, weights: Tensor, overflowed: bool) -> None:
        """Scales the buckets that waited for the weights [m + 1], and starts their all-reduces."""
        weight = float(weights[self._ranks.rank])
        for gradients, buffer, _ in self._backward.waiting:
            if overflowed:
                buffer.fill_(torch.nan)  # all ranks see it, and their GradScalers skip the step
            else:
                buffer.mul_(weight) if weight else buffer.zero_()
                self._add_own_share(gradients, weights)
        for _, buffer, future in self._backward.waiting:
            self._send(buffer, future)

    def _weights_ahead(self) -> Tensor | None:
        """[m + 1] those that are known before the last bucket: of plain DDP, or of the step before; else None."""
        if self.act:
            return self._weights if self.overlap else None
        return torch.tensor([1 / self._ranks.size] * self._ranks.size + [0.0], dtype=torch.float64)

    def _sketch_of(self, gradients: "Gradients", buffer: Tensor, factor: float) -> Tensor:
        """The part of this rank's sketch that is of these gradients [k], in units of the loss; then scales them.

        Positions belong to parameters, because buckets change.
        """
        found = Sketch(1, self._k, SIGNS, buffer)
        for parameter, gradient in gradients.items():
            flat = gradient.reshape(1, -1)
            found.add(flat, self._starts[parameter], factor)
            if factor != 1 and flat.data_ptr() != gradient.data_ptr():  # it was scaled in a copy
                gradient.mul_(factor)
        return found.sums()[0] / self._backward.scale

    def _is_usual(self, part: Tensor, index: int, buffer: Tensor) -> bool:
        """Whether a bucket with this part of the sketch is finite, and not many times as long as usual."""
        return self._lengths.is_usual(float(part.norm()), (index, buffer.numel()))

    def _leave_out(self, buffer: Tensor, part: Tensor) -> None:
        """Puts zeros in place of a bucket; NaN where the loss scale may be too high, for all GradScalers to see."""
        too_high = self._backward.scale > self._finite_at[self._ranks.rank]
        overflowed = isinstance(self.scale, GradScaler) and too_high and not bool(part.isfinite().all())
        buffer.fill_(torch.nan if overflowed else 0.0)

    def _add_own_share(self, gradients: "Gradients", weights: Tensor) -> None:
        """On the rank that has the samples, to what it puts into the all-reduce."""
        share, now = float(weights[-1]), self._backward
        if share and self._own is not None:
            now.own = own_gradient(self._own_gradients, share) if now.own is None else now.own
            for parameter, gradient in gradients.items():
                start = self._starts[parameter]
                part = now.own[start : start + gradient.numel()].view_as(gradient)
                gradient.add_(part, alpha=share * now.scale)

    def _send(self, buffer: Tensor, future: "Future[Tensor]") -> None:
        """Starts the all-reduce of a bucket.

        Not with a callback of the work's own future: a thread of gloo would have to free it, which needs the
        interpreter, and a process that ends waits for that thread with the interpreter in its hands.
        """
        work = dist.all_reduce(buffer, group=self._ranks.group, async_op=True)
        assert work is not None  # this rank is in the group
        self._backward.sent.append((work, buffer, future))

    def _compute_own_gradient(self) -> None:
        """On the rank with the samples; the others get its sketches."""
        if self._own is not None:
            self._own_gradients = self._own.halves(self.steps)
            if not bool(self._own_gradients.isfinite().all()):  # then it says nothing
                self._own_gradients.zero_()
            for number, half in enumerate(self._own_gradients):
                found = Sketch(1, self._k, SIGNS, half)
                found.add(half[None], 0)
                self._own_sketches[number] = found.sums()[0]
        self._ranks.share(self._own_sketches, self._with_data)
        self._own_at = self.steps

    def _trust(self) -> Tensor:
        """[m] from 1 to 0: less the more evidence there is against a rank, and none in a suspect."""
        ledger = self.ledger
        evidence = torch.tensor(ledger.evidence, dtype=torch.float64)
        trust = (SOME_EVIDENCE / evidence.clamp(min=SOME_EVIDENCE)).clamp(min=0)
        trust[ledger.suspects] = 0
        return trust

    def _current_scale(self) -> float:
        return float(self.scale.get_scale()) if isinstance(self.scale, GradScaler) else float(self.scale)

    def _overflowed(self, unusable: list[int]) -> bool:
        """Whether gradients are not finite because the loss scale is too high: then the step is for the GradScaler.

        It is if most are not, or at a scale at which a rank has never had a finite one.
        """
        if not isinstance(self.scale, GradScaler):
            return False
        scale = self._backward.scale
        overflowed = 2 * len(unusable) > self._ranks.size or any(scale > self._finite_at[rank] for rank in unusable)
        for rank in set(range(self._ranks.size)) - set(unusable):
            self._finite_at[rank] = max(scale, self._finite_at[rank])
        return overflowed

    def _write(self, record: Record) -> None:
        ledger = self.ledger
        try:
            with self._recorder.written(record):
                pass
        except OSError as error:  # training does not depend on it
            warnings.warn(f"The records of the Guard end at step {self.steps}: {error}", stacklevel=2)
            self._recorder.continue_from(ledger)
            self._recorder.folder = None
            self._recorder.open(self._ranks.size, self.steps)
            with self._recorder.written(record):
                pass
        self.record = record
        self.steps += 1
        if self._on_suspect is not None:
            for rank in self._recorder.named:
                call(self._on_suspect, ledger.rows[rank])

    def _warn_of(self, drifted: list[int]) -> None:
        if drifted and self._ranks.rank == 0:
            which = f"rank {drifted[0]}" if len(drifted) == 1 else f"ranks {', '.join(map(str, drifted))}"
            now = "They are replaced by those of the others." if self.act else "They stay, as act=False."
            warnings.warn(
                f"At step {self.steps - 1} the parameters of {which} differ from those of most ranks. {now}",
                stacklevel=2,
            )


Gradients: TypeAlias = dict[nn.Parameter, Tensor]  # by parameter: views of a bucket


@dataclass
class _Backward:
    """What is known of the step under way."""

    scale: float = 1.0
    sketch: Tensor = field(default_factory=lambda: torch.zeros(()))  # [k] of the buckets so far
    waiting: list[tuple[Gradients, Tensor, "Future[Tensor]"]] = field(default_factory=list)  # for the weights
    sent: list[tuple["Work", Tensor, "Future[Tensor]"]] = field(default_factory=list)  # to the all-reduce
    own: Tensor | None = None  # [d], on the rank that has the samples, if it has a share
    clock: Clock = field(default_factory=lambda: Clock(()))


def _record(
    step: int, compared: Comparison, weights: Tensor | None, errors: dict[int, ReplyError], now: _Backward
) -> Record:
    """Of a step with these weights [m + 1]; None if it is skipped."""
    cosines, lengths = map(rounded, compared.likeness.tolist())
    shares = [] if weights is None else [float(f"{weight:.4g}") for weight in weights.tolist()]
    return Record(
        step=step,
        lr=None,
        kept=None if weights is None else (weights[:-1] != 0).tolist(),
        scores=None if weights is None else finite(compared.scores.tolist()),
        weights=None if weights is None else shares[:-1],
        own=0.0 if weights is None else shares[-1],
        cosines=None if weights is None else cosines,
        lengths=None if weights is None else lengths,
        errors=errors,
        skipped=OVERFLOWED if weights is None else None,
        seconds=now.clock.seconds,
    )
