"""Zeno in a script started by `torchrun`, in place of DDP's all-reduce.

Every rank computes a gradient and calls `step`. One rank, which has a `zeno.Server`, receives the gradients of all
ranks one after the other, lets its model take the step, and broadcasts the new parameters. The optimizers of the other
ranks do nothing: their trainable parameters are overwritten at every step, so a parameter that was corrupted in the
memory of a card is correct again after the next step. Frozen parameters are never sent: all ranks must start, and
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

import hashlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
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
from zeno.server.server import Server

if TYPE_CHECKING:  # some builds of torch lack them
    from torch.distributed import ProcessGroup, Work

BUCKET_BYTES = 25 * 2**20
DIFFERENCE_BYTES = 400  # of a text that says how a rank differs
MAX_DIFFERENCES = 3  # in an error
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
        transport.compare()
        _COMPARED.add(model)
    if server is None:
        transport.send(own)
        reason = transport.share_reason()
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
        transport.share_reason(str(error))
        raise
    transport.share_reason()
    transport.share_model(is_server=True)
    return aggregate


def _check(
    model: nn.Module, optimizer: Optimizer, server: Server | None, server_rank: int, group: "ProcessGroup | None"
) -> None:
    """Raises for mistakes by the caller."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "zeno.distributed.step needs a process group. Found none. Start the script with torchrun and call "
            "torch.distributed.init_process_group() in it."
        )
    size, rank = dist.get_world_size(group), dist.get_rank(group)
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
        raise ValueError("zeno.distributed.step needs a server that was created with this model and optimizer.")


class _Transport:
    """Moves gradients from the ranks to the server, and the model back, as flat vectors in buckets."""

    def __init__(self, model: nn.Module, server_rank: int, group: "ProcessGroup | None", bucket_bytes: int) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"zeno.distributed.step needs bucket_bytes of at least 1. Found {bucket_bytes}.")
        self.model = model
        self.server_rank = server_rank
        self.group = group
        self.ranks = dist.get_world_size(group)
        parameters = trainable(model).values()
        self.size = sum(parameter.numel() for parameter in parameters)  # d
        first = next(iter(parameters))
        self.bucket_bytes = bucket_bytes
        self.bucket = max(1, bucket_bytes // first.element_size())
        # Gloo sends from the CPU, NCCL from a GPU.
        device = torch.device("cpu") if dist.get_backend(group) == "gloo" else first.device
        self._like = torch.empty(0, dtype=first.dtype, device=device)

    def vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """All elements in order, as one vector that can be sent."""
        return torch.cat([tensor.detach().flatten().to(self._like) for tensor in tensors])

    def send(self, vector: Tensor) -> None:
        """Sends a vector [d] to the server."""
        _wait([dist.isend(part, self._global(self.server_rank), self.group) for part in vector.split(self.bucket)])

    def start_receiving(self, rank: int, row: Tensor) -> "list[Work | None]":
        """Starts to receive a rank's vector into a row [d]; wait for all of these.

        The rest of a message that is too short stays NaN, so nothing of it is used, nor of what the row held before.
        """
        row.fill_(torch.nan)
        return [dist.irecv(part, self._global(rank), self.group) for part in row.split(self.bucket)]

    def compare(self) -> None:
        """Raises the same error on every rank if one of them would send or expect something else than rank 0."""
        own = self._description()
        if len(set(self._gather(hashlib.sha256("\n".join(own).encode()).digest()))) == 1:
            return
        first = self._share_text("\n".join(own), rank=0).split("\n")
        pairs = zip_longest(own, first, fillvalue="nothing more")
        differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
        text = (
            "" if differing is None else f"{differing[0]} on rank {dist.get_rank(self.group)}, {differing[1]} on rank 0"
        )
        gathered = self._gather(text.encode()[:DIFFERENCE_BYTES].ljust(DIFFERENCE_BYTES))
        found = [text.decode(errors="replace").strip() for text in gathered if text.strip()]
        more = f"; and {len(found) - MAX_DIFFERENCES} more" if len(found) > MAX_DIFFERENCES else ""
        raise ValueError(
            "zeno.distributed.step needs the same model and the same arguments on all ranks. Found "
            f"{'; '.join(found[:MAX_DIFFERENCES])}{more}. Create the model in the same way on every rank."
        )

    def _description(self) -> list[str]:
        """What all ranks must have in common, in lines."""
        parameters = [f"{name} {list(p.shape)} {p.dtype}" for name, p in trainable(self.model).items()]
        norms = [f"a {type(norm).__name__} with {list(b.shape)} {b.dtype}" for norm, b in self._statistics()]
        return [f"server_rank={self.server_rank}", f"bucket_bytes={self.bucket_bytes}", *parameters, *norms]

    def _gather(self, content: bytes) -> list[bytes]:
        """The bytes of all ranks, which are as many on each, in order."""
        own = torch.tensor(list(content), dtype=torch.uint8, device=self._like.device)
        found = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(found, own, self.group)
        return [bytes(one.tolist()) for one in found]

    def share_reason(self, reason: str = "") -> str:
        """Why the server skips the step, on every rank; an empty text if it does not."""
        return self._share_text(reason, self.server_rank)

    def _share_text(self, text: str, rank: int) -> str:
        """The text of a rank, on every rank."""
        texts = [text]
        dist.broadcast_object_list(texts, self._global(rank), self.group, self._like.device)
        return texts[0]

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
                    dist.broadcast(bucket, self._global(self.server_rank), self.group)
                for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
                    if not is_server:
                        tensor.detach().copy_(part.view(tensor.shape))

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class _Gradients:
    """The vectors [d] of all ranks, one after the other; one is received while the one before is used."""

    def __init__(self, transport: _Transport, own: Tensor, server: Server) -> None:
        self._transport, self._own, self._server = transport, own, server

    def __len__(self) -> int:
        return self._transport.ranks

    def __iter__(self) -> Iterator[Tensor]:
        transport = self._transport
        others = [rank for rank in range(transport.ranks) if rank != transport.server_rank]
        num_rows = min(2, len(others))  # used in turn
        rows = _ROWS.get(self._server, [])
        if len(rows) < num_rows:
            rows = _ROWS[self._server] = [self._own.new_empty(transport.size) for _ in range(num_rows)]
        pending = [transport.start_receiving(others[k], rows[k]) for k in range(num_rows)]
        for rank in range(transport.ranks):
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
