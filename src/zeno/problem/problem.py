"""The parameters of the model are views of one buffer [d], so that trying a candidate is a single `x - lr * u`
written over it, however many layers there are.

Buffers (BatchNorm's running statistics) are the server's. Gradients use the statistics of their own batch and
leave the buffers alone; `refresh` sets them from samples of the server's for the parameters at hand. Scores
leave them alone too. Dropout is on for gradients, from a seed, and off everywhere else.

Shapes: m candidates, d parameters, n samples, k batches.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _NormBase

from zeno.problem.dataset import Batch
from zeno.problem.oracle import Oracle
from zeno.problem.replicas import Replicas
from zeno.problem.threads import Draws

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> the mean loss over the samples."""

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
"""What a gradient is computed in: the numbers of the parameters, or lower ones where torch's autocast sees fit."""

BATCHES_AT_ONCE = 32


class Problem:
    """`loss`, `gradient`, `descent` and `accuracy` of a model as functions of its parameters as one vector [d].

    Takes the model over: its parameters become views of one buffer, and hold whatever was evaluated last.
    """

    def __init__(self, model: nn.Module, loss: Loss = F.cross_entropy) -> None:
        self.model = model
        self.loss_of = loss
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        kinds = {kind_of(p) for p in self.parameters}
        if len(kinds) != 1:
            raise ValueError(
                "A Problem needs a model with trainable parameters of one dtype on one device. "
                f"Found {', '.join(sorted(kinds)) or 'no trainable parameters'}."
            )
        [self.kind] = kinds
        self._flat = torch.cat([p.detach().flatten() for p in self.parameters])  # [d]
        parts = self._flat.split([p.numel() for p in self.parameters])
        self._views = [part.view(p.shape) for p, part in zip(self.parameters, parts, strict=True)]
        self.norms = norms_of(model)
        self.has_company = False  # whether others may draw random numbers at the same time
        self._replicas = Replicas(self)

    def __reduce__(self) -> tuple[type["Problem"], tuple[nn.Module, Loss]]:
        """Copies and pickles are made from the model, so that theirs are views of a buffer of their own."""
        return Problem, (self.model, self.loss_of)

    @property
    def flat(self) -> Tensor:
        """The parameters that the model has now [d]; writing to it writes to the model."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():  # at first, or when somebody gave it other memory since
                view.copy_(parameter.detach())
                parameter.data = view
        return self._flat

    @property
    def size(self) -> int:
        """d, the number of trainable parameters."""
        return self._flat.numel()

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers by name, as they are; copy what you keep."""
        return dict(self.model.named_buffers())

    def load(self, params: Tensor) -> None:
        """Puts parameters [d] into the model."""
        self.flat.copy_(params.detach())

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Puts buffers, by name, into the model."""
        own = self.buffers
        for name, value in buffers.items():
            own[name].copy_(value.detach())

    def loss(self, params: Tensor, batch: Batch) -> float:
        """Mean loss as in prediction: no dropout, running statistics."""
        self.load(params)
        self.model.eval()
        return self.loss_here(batch)

    def accuracy(self, params: Tensor, batch: Batch) -> float:
        """Share of the samples whose label gets the highest output."""
        self.load(params)
        self.model.eval()
        with torch.no_grad():
            predicted = self._outputs(batch.inputs).argmax(dim=1)
        return float((predicted == batch.targets).double().mean())

    def gradient(self, params: Tensor, batch: Batch, seed: int, precision: str = "float32") -> Tensor:
        """Gradient of the mean loss [d]: dropout drawn from `seed`, statistics of the batch, buffers unchanged."""
        self.load(params)
        self.model.train()
        draws = Draws(seed) if self.has_company else _seeded(seed, self._flat)
        with draws, self.buffers_unchanged():
            return self.gradient_here(batch, precision)

    def gradients(self, params: Tensor, inputs: Tensor, targets: Tensor, precision: str = "float32") -> Tensor:
        """The gradients of k batches [k, n, ...] at once -> [k, d]; they may differ from `gradient` in the last bits.

        Only for models without buffers. Raises what torch.func does where it cannot tell batches apart, as in dropout.
        """
        if self.buffers:
            raise RuntimeError(f"Gradients at once need a model without buffers. Found {', '.join(self.buffers)}.")
        self.model.train()
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

        def loss(flat: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
            parts = flat.split([view.numel() for view in self._views])
            values = {name: part.view(v.shape) for name, part, v in zip(names, parts, self._views, strict=True)}
            return self._loss(lambda: functional_call(self.model, values, (inputs,)), targets, precision)

        at_once = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=BATCHES_AT_ONCE)
        gradients: Tensor = at_once(params.detach(), inputs, targets)
        return gradients

    def at(self, params: Tensor, lr: float | Tensor, batch: Batch, own_statistics: bool | None = None) -> Oracle:
        """What these samples say at these parameters [d]: their gradient, and the descent that candidates bring.

        `lr` is one rate, or one for each parameter [d].
        """
        params = params.detach()
        if params.untyped_storage().data_ptr() == self._flat.untyped_storage().data_ptr():
            params = params.clone()  # `flat` is about to be written to
        return Oracle(self, params, lr, batch, own_statistics)

    def descent(
        self, params: Tensor, candidates: Tensor, lr: float, batch: Batch, own_statistics: bool | None = None
    ) -> Tensor:
        """By how much each candidate u [m, d] lowers the loss: f_r(x) - f_r(x - lr * u) -> [m], float64.

        NaN for a candidate that is not finite. `own_statistics` normalise with the samples' own statistics, or with
        the running ones; by default it depends on how many samples there are.
        """
        return self.at(params, lr, batch, own_statistics)(candidates)

    def refresh(self, params: Tensor, inputs: Tensor) -> None:
        """Sets the running statistics to those of these samples [n, ...] under these parameters, and nothing older."""
        if not self.norms:
            return
        self.load(params)
        self.model.eval()
        momenta = [norm.momentum for norm in self.norms]
        for norm in self.norms:
            norm.train()
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over what has been seen since the reset
        try:
            with torch.no_grad():
                self._outputs(inputs)
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum

    def replicas(self, number: int, batch: Batch) -> list["Problem"]:
        """That many copies, to work at the same time; or this problem alone, where it cannot be copied.

        A few of the samples show whether a copy is one.
        """
        return self._replicas.take(number, batch)

    def loss_here(self, batch: Batch) -> float:
        """The loss with the model as it is, from the outputs on in float64: scores are far smaller than losses."""
        return self.losses_here(batch, 1)[0]

    def losses_here(self, batch: Batch, parts: int) -> list[float]:
        """The loss of each of so many equal parts of the batch; samples that are left over are in none."""
        size = len(batch.targets) // parts
        with torch.no_grad():
            outputs, targets = self._outputs(batch.inputs), batch.targets
            losses = []
            for part in (slice(k * size, (k + 1) * size) for k in range(parts)):
                own = targets[part]
                try:
                    precise = own.double() if own.is_floating_point() else own
                    losses.append(_number(self.loss_of(outputs[part].double(), precise)))
                except RuntimeError:  # a loss with float32 weights of its own
                    losses.append(_number(self.loss_of(outputs[part], own)))
            return losses

    def gradient_here(self, batch: Batch, precision: str = "float32") -> Tensor:
        """The gradient [d] with the model as it is."""
        loss = self._loss(lambda: self._outputs(batch.inputs), batch.targets, precision)
        gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([g.flatten() for g in gradients])

    @contextlib.contextmanager
    def buffers_unchanged(self) -> Iterator[None]:
        """Buffers may change inside, and are as they were afterwards."""
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
                "A Problem needs a model that returns one tensor with a row for each sample. "
                f"Found {type(outputs).__name__}. Wrap the model in one that returns what the loss needs."
            )
        return outputs

    def _loss(self, outputs: Callable[[], Tensor], targets: Tensor, precision: str) -> Tensor:
        dtype = PRECISIONS[precision]
        if dtype is None:
            return self.loss_of(outputs(), targets)
        with torch.autocast(self._flat.device.type, dtype):
            low = outputs()
        return self.loss_of(low.to(self._flat.dtype), targets)


def _number(loss: Tensor) -> float:
    if loss.numel() != 1:
        raise ValueError(
            f"A Problem needs loss as one number, the mean over the samples. Found shape {list(loss.shape)}. "
            "Pass reduction='mean', or take the mean of it."
        )
    return float(loss)


def kind_of(tensor: Tensor) -> str:
    """Which numbers, and where they are."""
    return f"{tensor.dtype} on {tensor.device}"


def norms_of(model: nn.Module) -> list[_NormBase]:
    """The layers with running statistics."""
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]


@contextlib.contextmanager
def _seeded(seed: int, tensor: Tensor) -> Iterator[None]:
    """Draws inside come from the seed, and leave the draws outside as they were."""
    with torch.random.fork_rng(devices=[tensor.device] if tensor.is_cuda else []):
        # Not torch.manual_seed: it also queues a seed for every kind of device that is not in use, and each call
        # adds to that queue.
        torch.default_generator.manual_seed(seed)
        if tensor.is_cuda:
            torch.cuda.default_generators[tensor.device.index].manual_seed(seed)
        yield
