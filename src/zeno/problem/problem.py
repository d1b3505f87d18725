"""A model and its loss as functions of one flat parameter vector; the only module that knows about layers.

The parameters of the model are views of one buffer [d], so trying a candidate is a single `x - lr * u` written to it,
however many layers there are.

Buffers (BatchNorm's running statistics) belong to the server. Gradients use the statistics of their own batch and
do not change the buffers; neither do scores. `refresh` computes them from the server's samples for given parameters.
Dropout is active for gradients to train on, drawn from a seed, and off everywhere else.

Shapes: m candidates, d parameters, n samples, k batches.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _NormBase

from zeno.problem.dataset import Batch
from zeno.problem.flat import trainable, unflatten
from zeno.problem.losses import (
    Loss,
    loss_of_outputs,
    loss_of_piece,
    loss_of_pieces,
    one_number,
    precise_loss,
    precise_loss_of_pieces,
    require_gradient,
)
from zeno.problem.nested import NestedBatch
from zeno.problem.oracle import LossOracle
from zeno.problem.replicas import Replicas
from zeno.problem.threads import Draws

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
"""Precision of gradients: that of the parameters, or bfloat16 where torch's autocast uses it."""

BATCHES_AT_ONCE = 32


class Problem:
    """`loss`, `gradient`, `descent` and `accuracy` of a model as functions of its parameters as one vector [d].

    Takes ownership of the model: its parameters become views of one buffer and hold whatever was evaluated last. Only
    what ends in `_here` leaves them where they are.
    """

    def __init__(self, model: nn.Module, loss: Loss = F.cross_entropy) -> None:
        self.model = model
        self.loss_of = loss
        self.parameters = list(trainable(model).values())
        kinds = {kind_of(p) for p in self.parameters}
        if len(kinds) != 1:
            raise ValueError(
                "A Problem needs a model with trainable parameters of one dtype on one device. "
                f"Found {', '.join(sorted(kinds)) or 'no trainable parameters'}."
            )
        [self.kind] = kinds
        self.norms = norms_of(model)
        self.gradient_seconds = 0.0  # that the last gradient on the server's samples took
        self.is_replica = False  # then other threads may draw random numbers at the same time
        self.replicas = Replicas(self)

    @cached_property
    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])  # [d]

    @cached_property
    def _views(self) -> list[Tensor]:
        return list(unflatten(self._flat, self.model).values())

    def __reduce__(self) -> tuple[type["Problem"], tuple[nn.Module, Loss]]:
        """Copied and pickled by its model, so that a copy has its own buffer."""
        return Problem, (self.model, self.loss_of)

    @property
    def flat(self) -> Tensor:
        """The current parameters of the model [d]; writing to it writes to the model."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():  # at first, or after somebody replaced its storage
                view.copy_(parameter.detach())
                parameter.data = view
        return self._flat

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return sum(p.numel() for p in self.parameters)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers by name, not copied."""
        return dict(self.model.named_buffers())

    @property
    def trains_on_running_statistics(self) -> bool:
        """Whether gradients read running statistics, as where the model keeps a BatchNorm in evaluation mode."""
        return bool(self.norms) and not all(norm.training for norm in norms_of(self.model.train()))

    def load(self, params: Tensor) -> None:
        """Loads parameters [d] into the model."""
        self.flat.copy_(params.detach())

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Loads buffers, by name, into the model."""
        own = self.buffers
        for name, value in buffers.items():
            own[name].copy_(value.detach())

    def loss(self, params: Tensor, batch: Batch) -> float:
        """Mean loss as in prediction: no dropout, running statistics."""
        self.load(params)
        self.model.eval()
        return self.loss_here(batch)

    def accuracy(self, params: Tensor, batch: Batch) -> float:
        """Share of the samples whose label has the highest output."""
        self.load(params)
        self.model.eval()
        with torch.no_grad():
            predicted = self._outputs(batch.inputs).argmax(dim=1)
        return float((predicted == batch.targets).double().mean())

    def gradient(self, params: Tensor, batch: Batch, seed: int, precision: str = "float32") -> Tensor:
        """Gradient of the mean loss [d]: dropout drawn from `seed`, statistics of the batch, buffers unchanged."""
        self.load(params)
        self.model.train()
        with self.draws(seed), self.buffers_unchanged():
            return self.gradient_here(batch, precision)

    def draws(self, seed: int) -> AbstractContextManager[object]:
        """Random draws of the model inside, as of dropout, come from the seed and do not affect those outside."""
        return Draws(seed) if self.is_replica else _seeded(seed, self._flat)

    def gradients(self, params: Tensor, inputs: Tensor, targets: Tensor, precision: str = "float32") -> Tensor:
        """The gradients of k batches [k, n, ...] at once -> [k, d]; they may differ from `gradient` in the last bits.

        For models without buffers. Raises what torch.func raises where it cannot vectorise, for example dropout.
        """
        if self.buffers:
            raise RuntimeError(f"Vectorised gradients need a model without buffers. Found {', '.join(self.buffers)}.")
        self.model.train()

        def loss(flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            parameters = unflatten(flat, self.model)
            return self._loss(lambda: functional_call(self.model, parameters, (inputs,)), targets, precision)

        at_once = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=BATCHES_AT_ONCE)
        gradients: Tensor = at_once(params.detach(), inputs, targets)
        return gradients

    def at(
        self,
        params: Tensor,
        lr: float | Tensor,
        batch: Batch | NestedBatch,
        own_statistics: bool | None = None,
        seed: int = 0,
    ) -> LossOracle:
        """The loss on these samples at these parameters [d]: its gradient, and the descent of candidates.

        `lr` is one learning rate, or one for each parameter [d]; `seed` is that of the dropout in `half_gradients`.
        """
        params = params.detach()
        if params.untyped_storage().data_ptr() == self._flat.untyped_storage().data_ptr():
            params = params.clone()  # `flat` is about to be written to
        return LossOracle(self, params, lr, batch, own_statistics, seed)

    def descent(
        self, params: Tensor, candidates: Tensor, lr: float, batch: Batch, own_statistics: bool | None = None
    ) -> Tensor:
        """By how much each candidate u [m, d] lowers the loss: f_r(x) - f_r(x - lr * u) -> [m], float64.

        NaN for a candidate that is not finite. `own_statistics` selects batch or running statistics in BatchNorm; by
        default it depends on the number of samples.
        """
        return self.at(params, lr, batch, own_statistics).descents(candidates)

    def refresh(self, params: Tensor, samples: Tensor | NestedBatch) -> None:
        """Sets the running statistics to those of these samples under these parameters, and no others.

        The samples are inputs [n, ...], or batches for a loss of (model, batch).
        """
        self.load(params)
        self.model.eval()
        momenta = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over what has been seen since the reset
        try:
            with torch.no_grad():
                if isinstance(samples, Tensor):
                    self._outputs(samples)
                else:
                    self._refresh_by_piece(samples)
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum

    def loss_here(self, batch: Batch | NestedBatch) -> float:
        """The loss at the current parameters.

        In float64 from the outputs on: scores are far smaller than losses. A loss of (model, batch) computes its
        outputs itself: there, only the mean over the pieces is in float64.
        """
        with torch.no_grad():
            if isinstance(batch, NestedBatch):
                return precise_loss_of_pieces(self.loss_of, self.model, batch)
            return precise_loss(self.loss_of, self._outputs(batch.inputs), batch.targets)

    def gradient_here(self, batch: Batch | NestedBatch, precision: str = "float32") -> Tensor:
        """The gradient [d] at the current parameters."""
        if isinstance(batch, NestedBatch):
            loss = loss_of_pieces(self.loss_of, self.model, batch)
        else:
            loss = one_number(self._loss(lambda: self._outputs(batch.inputs), batch.targets, precision))
        gradients = torch.autograd.grad(require_gradient(loss), self.parameters, materialize_grads=True)
        return torch.cat([g.flatten() for g in gradients])

    @contextlib.contextmanager
    def buffers_unchanged(self) -> Iterator[None]:
        """Restores the buffers on exit."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(self.model.buffers(), before, strict=True):
                    buffer.copy_(value)

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs: object = self.model(inputs)
        if not isinstance(outputs, Tensor):
            raise ValueError(
                "A Problem needs a model that returns one tensor with one row per sample. "
                f"Found {type(outputs).__name__}. Pass a loss of (model, batch), which reads what it needs."
            )
        return outputs

    def _refresh_by_piece(self, batch: NestedBatch) -> None:
        statistics = [s for norm in self.norms for s in (norm.running_mean, norm.running_var) if s is not None]
        means = [torch.zeros_like(statistic) for statistic in statistics]
        for piece in batch.pieces:
            for norm in self.norms:
                norm.reset_running_stats()
            loss_of_piece(self.loss_of, self.model, piece)
            for mean, statistic in zip(means, statistics, strict=True):
                mean.add_(statistic, alpha=piece.size / batch.size)
        for mean, statistic in zip(means, statistics, strict=True):
            statistic.copy_(mean)

    def _loss(self, outputs: Callable[[], Tensor], targets: Tensor, precision: str) -> Tensor:
        dtype = PRECISIONS[precision]
        if dtype is None:
            return loss_of_outputs(self.loss_of, outputs(), targets)
        with torch.autocast(self._flat.device.type, dtype):
            low = outputs()
        return loss_of_outputs(self.loss_of, low.to(self._flat.dtype), targets)


def kind_of(tensor: Tensor) -> str:
    """The dtype and device, as text."""
    return f"{tensor.dtype} on {tensor.device}"


def norms_of(model: nn.Module) -> list[_NormBase]:
    """The layers that track running statistics."""
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]


@contextlib.contextmanager
def _seeded(seed: int, tensor: Tensor) -> Iterator[None]:
    """Random draws inside come from the seed and do not affect those outside."""
    with torch.random.fork_rng(devices=[tensor.device] if tensor.is_cuda else []):
        # Not torch.manual_seed: each call also queues a seed for every kind of device that is not in use.
        torch.default_generator.manual_seed(seed)
        if tensor.is_cuda:
            torch.cuda.default_generators[tensor.device.index].manual_seed(seed)
        yield
