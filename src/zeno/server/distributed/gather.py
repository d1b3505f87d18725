"""Any rule in a script started by `torchrun`, in place of DDP's all-reduce: one rank receives all gradients.

Every rank computes a gradient and calls `step`. One rank, which has a `zeno.Server`, receives the gradients of all
ranks one after the other, lets its model take the step, and broadcasts the new parameters. The optimizers of the other
ranks do nothing: their trainable parameters are overwritten at every step, so a parameter that was corrupted in the
memory of a GPU is correct again after the next step. Frozen parameters are never sent: all ranks must start, and
resume, with the same model.

Gradients travel in buckets, into a row that is copied and scored while the next one is being received. With
`Zeno(trim=b)` the server holds m - b + 3 rows instead of m; other rules need all m.

At the first step with a model, the ranks compare the names, shapes and types of what they will send. If these differ,
every rank raises the same `ValueError`, and nothing else is sent.

Limits: a rank that dies, hangs or changes its model later takes the process group down with it, as in DDP. So does
another exception on one rank; only `TooFewUsable` is raised on all of them. For workers that come and go there is Ray:
`zeno train --cluster ray`.

Shapes: m ranks, d parameters.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem.flat import gradients, plain_tensor, trainable
from zeno.problem.problem import norms_of
from zeno.rules.rule import Aggregate, TooFewUsable
from zeno.server.distributed.ranks import Ranks
from zeno.server.server import Server

if TYPE_CHECKING:  # some builds of torch lack them
    from torch.distributed import ProcessGroup, Work

BUCKET_BYTES = 25 * 2**20
CALLER = "zeno.distributed.step"
_COMPARED: "WeakSet[nn.Module]" = WeakSet()  # models that all ranks have alike
_ROWS: "WeakKeyDictionary[Server, list[Tensor]]" = WeakKeyDictionary()  # reused: allocating costs as much as a pass


def step(
    model: nn.Module,
    optimizer: Optimizer,
    server: Server | None = None,
    *,
    sent: Tensor | np.ndarray | None = None,
    server_rank: int = 0,
    group: "ProcessGroup | None" = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Aggregate | None:
    """One step of all ranks from the gradients that `backward` left; call it on each, in place of `optimizer.step()`.

    The rank `server_rank` of the group passes its `server`, created with this model and optimizer, and gets the rule's
    aggregate; the others get None. `sent` [d] is sent in place of the gradients, for example a momentum. If more ranks
    send non-finite gradients than the rule tolerates, all ranks raise `zeno.TooFewUsable` and no model changes.
    `bucket_bytes` must be the same on all ranks. If the ranks have different models, all raise ValueError at the first
    step.
    """
    _check(model, optimizer, server, server_rank, group)
    transport = _Transport(model, server_rank, group, bucket_bytes)
    given = None if sent is None else plain_tensor(sent)
    if sent is not None and (given is None or given.shape != (transport.size,)):
        found = type(sent).__name__ if given is None else f"shape {list(given.shape)}"
        raise ValueError(f"zeno.distributed.step needs sent as {transport.size} numbers. Found {found}.")
    own = transport.vector(gradients(model, caller="zeno.distributed.step") if given is None else [given])
    if model not in _COMPARED:
        transport.ranks.compare(transport.description())
        _COMPARED.add(model)
    if server is None:
        transport.send(own)
        reason = transport.ranks.share_text("", server_rank)
        if reason:
            raise TooFewUsable(reason)
        for parameter in trainable(model).values():
            parameter.grad = None
        optimizer.step()  # nothing to do; learning-rate schedules want to see it called
        transport.share_model(is_server=False)
        return None
    try:
        aggregate = server.step(_Gradients(transport, own, server))
    except TooFewUsable as error:
        transport.ranks.share_text(str(error), server_rank)  # why the step is skipped
        raise
    transport.ranks.share_text("", server_rank)
    transport.share_model(is_server=True)
    return aggregate


def _check(
    model: nn.Module, optimizer: Optimizer, server: Server | None, server_rank: int, group: "ProcessGroup | None"
) -> None:
    """Raises for mistakes by the caller."""
    ranks = Ranks(group, torch.empty(0), CALLER)
    size, rank = ranks.size, ranks.rank
    if not 0 <= server_rank < size:
        raise ValueError(f"zeno.distributed.step needs server_rank from 0 to {size - 1}. Found {server_rank}.")
    if (rank == server_rank) != (server is not None):
        found = "none" if server is None else "one"
        raise ValueError(
            f"zeno.distributed.step needs a server on rank {server_rank} and on no other. Found {found} on rank {rank}."
            f" Create it with `zeno.Server(...) if rank == {server_rank} else None`."
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "zeno.distributed.step needs the model itself. Found it in DistributedDataParallel, whose backward averages"
            " the gradients of all ranks before they can be checked. Pass the model without DDP."
        )
    if server is not None and (server.model is not model or server.optimizer is not optimizer):
        raise ValueError(
            "zeno.distributed.step needs the model and the optimizer that its server has. Found others. Pass those "
            "that the Server was created with."
        )


class _Transport:
    """Moves gradients from the ranks to the server, and the model back, as flat vectors in buckets."""

    def __init__(self, model: nn.Module, server_rank: int, group: "ProcessGroup | None", bucket_bytes: int) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"zeno.distributed.step needs bucket_bytes of at least 1. Found {bucket_bytes}.")
        self.model = model
        self.server_rank = server_rank
        self.group = group
        parameters = trainable(model).values()
        self.size = sum(parameter.numel() for parameter in parameters)  # d
        first = next(iter(parameters))
        self.bucket_bytes = bucket_bytes
        self.bucket = max(1, bucket_bytes // first.element_size())
        self.ranks = Ranks(group, first, CALLER)
        self._like = torch.empty(0, dtype=first.dtype, device=self.ranks.device)

    def vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """All elements in order, as one vector that can be sent."""
        return torch.cat([tensor.detach().flatten().to(self._like) for tensor in tensors])

    def send(self, vector: Tensor) -> None:
        """Sends a vector [d] to the server."""
        _wait(
            [
                dist.isend(part, self.ranks.global_rank(self.server_rank), self.group)
                for part in vector.split(self.bucket)
            ]
        )

    def start_receiving(self, rank: int, row: Tensor) -> "list[Work | None]":
        """Starts to receive a rank's vector into a row [d]; wait for all of these.

        The rest of a message that is too short stays NaN, so nothing of it is used, nor of what the row held before.
        """
        row.fill_(torch.nan)
        return [dist.irecv(part, self.ranks.global_rank(rank), self.group) for part in row.split(self.bucket)]

    def description(self) -> list[str]:
        """What all ranks must have in common, in lines."""
        parameters = [f"{name} {list(p.shape)} {p.dtype}" for name, p in trainable(self.model).items()]
        norms = [f"a {type(norm).__name__} with {list(b.shape)} {b.dtype}" for norm, b in self._statistics()]
        return [f"server_rank={self.server_rank}", f"bucket_bytes={self.bucket_bytes}", *parameters, *norms]

    def _statistics(self) -> list[tuple[nn.Module, Tensor]]:
        """The running statistics of BatchNorm, each with its layer."""
        pairs = [(norm, b) for norm in norms_of(self.model) for b in (norm.running_mean, norm.running_var)]
        return [(norm, b) for norm, b in pairs if b is not None]

    def share_model(self, is_server: bool) -> None:
        """Copies the server's trainable parameters and running statistics to all ranks."""
        statistics = [b for _, b in self._statistics()]
        for tensors in (list(trainable(self.model).values()), statistics):
            if tensors:
                vector = self.vector(tensors)
                for bucket in vector.split(self.bucket):
                    dist.broadcast(bucket, self.ranks.global_rank(self.server_rank), self.group)
                for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
                    if not is_server:
                        tensor.detach().copy_(part.view(tensor.shape))


class _Gradients:
    """The vectors [d] of all ranks, one after the other; one is received while the one before is used."""

    def __init__(self, transport: _Transport, own: Tensor, server: Server) -> None:
        self._transport, self._own, self._server = transport, own, server

    def __len__(self) -> int:
        return self._transport.ranks.size

    def __iter__(self) -> Iterator[Tensor]:
        transport = self._transport
        others = [rank for rank in range(transport.ranks.size) if rank != transport.server_rank]
        num_rows = min(2, len(others))  # used in turn
        rows = _ROWS.get(self._server, [])
        if len(rows) < num_rows:
            rows = _ROWS[self._server] = [self._own.new_empty(transport.size) for _ in range(num_rows)]
        pending = [transport.start_receiving(others[k], rows[k]) for k in range(num_rows)]
        for rank in range(transport.ranks.size):
            if rank == transport.server_rank:
                yield self._own
                continue
            k = others.index(rank)
            _wait(pending[k % 2])
            yield rows[k % 2]
            if k + 2 < len(others):  # the row has been used
                pending[k % 2] = transport.start_receiving(others[k + 2], rows[k % 2])


def _wait(works: "Sequence[Work | None]") -> None:
    for work in works:
        if work is not None:
            work.wait()
