"""A model and its loss as functions of one flat parameter vector: the only module that knows layers.

The parameters of the model are views of one buffer [d], so that trying a candidate is a single
`x - lr * u` written over it, however many layers there are.

Buffers (BatchNorm's running statistics) are the server's. Gradients use the statistics of their own batch and
leave the buffers alone; `refresh` sets them from samples of the server's for the parameters at hand. Scores
leave them alone too. Dropout is on for gradients, from a seed, and off everywhere else.

Shapes: m candidates, d parameters, n samples.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from zeno.data import Batch

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [n, ...], targets [n, ...]) -> the mean loss over the samples."""

OWN_STATISTICS_FROM = 32
"""Scores on at least this many samples normalise with the samples' own statistics, as the gradients did.

The running ones belong to x, not to x - lr * u, and rank candidates worse; but fewer samples have statistics
too noisy to rank by.
"""


class Problem:
    """`loss`, `gradient`, `descent` and `accuracy` of a model as functions of its parameters as one vector [d].

    Takes the model over: its parameters become views of one buffer, and hold whatever was evaluated last.
    """

    def __init__(self, model: nn.Module, loss: Loss = F.cross_entropy) -> None:
        self.model = model
        self.loss_of = loss
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) != 1:
            raise ValueError(
                "A Problem needs a model with trainable parameters of one dtype on one device. "
                f"Found {sorted(map(str, kinds)) or 'no trainable parameters'}."
            )
        self._flat = torch.cat([p.detach().flatten() for p in self.parameters])  # [d]
        parts = self._flat.split([p.numel() for p in self.parameters])
        self._views = [part.view(p.shape) for p, part in zip(self.parameters, parts, strict=True)]
        self.norms = [n for n in model.modules() if isinstance(n, _NormBase) and n.track_running_stats]

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
        return self._forward_loss(batch)

    def accuracy(self, params: Tensor, batch: Batch) -> float:
        """Share of the samples whose label gets the highest output."""
        self.load(params)
        self.model.eval()
        with torch.no_grad():
            predicted = self._outputs(batch.inputs).argmax(dim=1)
        return float((predicted == batch.targets).double().mean())

    def gradient(self, params: Tensor, batch: Batch, seed: int) -> Tensor:
        """Gradient of the mean loss [d]: dropout drawn from `seed`, statistics of the batch, buffers unchanged."""
        self.load(params)
        self.model.train()
        with _seeded(seed, self._flat), self._buffers_unchanged():
            loss = self.loss_of(self._outputs(batch.inputs), batch.targets)
            gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        return torch.cat([g.flatten() for g in gradients])

    def descent(
        self, params: Tensor, candidates: Tensor, lr: float, batch: Batch, own_statistics: bool | None = None
    ) -> Tensor:
        """By how much each candidate u [m, d] lowers the loss: f_r(x) - f_r(x - lr * u) -> [m], float64.

        NaN for a candidate that is not finite. `own_statistics` normalise with the samples' own statistics, or with
        the running ones; by default it depends on how many samples there are.
        """
        if own_statistics is None:
            own_statistics = len(batch.targets) >= OWN_STATISTICS_FROM
        params = params.detach().clone()  # it may be `flat` itself, which is about to be written to
        self.load(params)
        self.model.eval()
        if own_statistics:
            for norm in self.norms:
                norm.train()
        losses, flat = [], self.flat
        with self._buffers_unchanged():
            start = self._forward_loss(batch)
            for u in candidates.detach():
                torch.add(params, u, alpha=-lr, out=flat)
                losses.append(self._forward_loss(batch) if bool(u.isfinite().all()) else float("nan"))
        self.load(params)
        return start - torch.tensor(losses, dtype=torch.float64, device=candidates.device)

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

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs

    def _forward_loss(self, batch: Batch) -> float:
        """The loss, from the outputs on in float64: what scores are made of is far smaller than the loss itself."""
        with torch.no_grad():
            outputs, targets = self._outputs(batch.inputs), batch.targets
            try:
                precise = targets.double() if targets.is_floating_point() else targets
                return float(self.loss_of(outputs.double(), precise))
            except RuntimeError:  # a loss with float32 weights of its own
                return float(self.loss_of(outputs, targets))

    @contextlib.contextmanager
    def _buffers_unchanged(self) -> Iterator[None]:
        before = [buffer.clone() for buffer in self.model.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(self.model.buffers(), before, strict=True):
                    buffer.copy_(value)


@contextlib.contextmanager
def _seeded(seed: int, tensor: Tensor) -> Iterator[None]:
    """Draws inside come from the seed, and leave the draws outside as they were."""
    with torch.random.fork_rng(devices=[tensor.device] if tensor.is_cuda else []):
        # Not torch.manual_seed: it also queues a seed for every kind of device that is not in use, and each call
        # adds to that queue.
        torch.default_generator.manual_seed(seed)
        if tensor.is_cuda:
            torch.cuda.manual_seed(seed)
        yield
