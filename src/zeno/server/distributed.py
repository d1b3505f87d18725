"""Zeno in a script that `torchrun` starts: in the place of DDP's all-reduce, where one bad card poisons everyone.

Every rank computes a gradient and calls `step`. One rank, which has a `zeno.Server`, takes what all of them send, one
rank after the other, lets its model take the step, and sends the new parameters back. The others' optimizers do
nothing: the parameters that they train are overwritten at every step, so one that went wrong in the memory of a card is
right again after the next. What is frozen is never sent, so all ranks begin with the same model, and resume with it.

Numbers travel in buckets, straight into the row that is scored while the next one is on its way. With `Zeno(trim=b)`
the server holds m - b + 2 of these rows, not m; other rules need all m.

What this cannot do: a rank that dies, hangs or has another model takes the process group with it, as in DDP. So does
an exception on one rank; only `TooFewUsable` is raised by all of them. For workers that come and go there is Ray:
`zeno train --cluster ray`.

Shapes: m ranks, d parameters.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem import norms_of
from zeno.problem.flat import gradients, trainable
from zeno.rules import Aggregate, TooFewUsable
from zeno.server.server import Server

if TYPE_CHECKING:  # some builds of torch lack them
    from torch.distributed import ProcessGroup, Work

BUCKET_BYTES = 25 * 2**20
_ROWS: "WeakKeyDictionary[Server, list[Tensor]]" = WeakKeyDictionary()  # kept: new memory costs as much as a pass


def step(
    model: nn.Module,
    optimizer: Optimizer,
    server: Server | None = None,
    *,
    sent: Tensor | None = None,
    server_rank: int = 0,
    group: "ProcessGroup | None" = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Aggregate | None:
    """One step of all ranks from what `backward` left: call it on each, in the place of `optimizer.step()`.

    The rank `server_rank` of the group passes its `server`, made with this model and optimizer, and gets what the rule
    made of it; the others get None. `sent` [d] goes to the server in the place of the gradients, such as a momentum.
    Where more ranks than the rule bears sent what is not finite, all raise `zeno.TooFewUsable`, and no model changes.
    `bucket_bytes` is the same on all ranks.
    """
    mine = _check(model, optimizer, server, server_rank, sent, group, bucket_bytes)
    line = _Line(model, server_rank, group, bucket_bytes)
    if server is None:
        line.send(mine)
        line.hear()
        for parameter in trainable(model).values():
            parameter.grad = None
        optimizer.step()  # which has nothing to do; schedules want to see it called
        line.receive()
        return None
    try:
        aggregate = server.step(_Arriving(line, mine, server))
    except TooFewUsable as error:
        line.tell(str(error))
        raise
    line.tell("")
    line.give()
    return aggregate


def _check(
    model: nn.Module,
    optimizer: Optimizer,
    server: Server | None,
    server_rank: int,
    sent: Tensor | None,
    group: "ProcessGroup | None",
    bucket_bytes: int,
) -> list[Tensor]:
    """What this rank sends, in parts; refuses what cannot work."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "zeno.distributed.step needs a process group. Found none. Start the script with torchrun, and call "
            "torch.distributed.init_process_group() in it."
        )
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if not 0 <= server_rank < size:
        raise ValueError(f"zeno.distributed.step needs server_rank from 0 to {size - 1}. Found {server_rank}.")
    if (rank == server_rank) != (server is not None):
        found = "none" if server is None else "one"
        raise ValueError(
            f"zeno.distributed.step needs a server on rank {server_rank} and on no other. Found {found} on rank {rank}."
            f" Make it with `zeno.Server(...) if rank == {server_rank} else None`."
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "zeno.distributed.step needs the model itself. Found it in DistributedDataParallel, whose backward averages"
            " what all ranks have before anybody looks at it. Pass the model, and leave DDP out."
        )
    if server is not None and (server.model is not model or server.optimizer is not optimizer):
        raise ValueError("zeno.distributed.step needs a server that was made with this model and optimizer.")
    if bucket_bytes < 1:
        raise ValueError(f"zeno.distributed.step needs bucket_bytes of at least 1. Found {bucket_bytes}.")
    if sent is None:
        return gradients(model, asked_by="zeno.distributed.step")
    first = next(iter(trainable(model).values()))
    d = sum(parameter.numel() for parameter in trainable(model).values())
    if sent.shape != (d,):
        raise ValueError(f"zeno.distributed.step needs sent as {d} numbers. Found shape {list(sent.shape)}.")
    return [sent.detach().to(first)]


class _Line:
    """What goes from the ranks to the server and back, in buckets."""

    def __init__(self, model: nn.Module, server_rank: int, group: "ProcessGroup | None", bucket_bytes: int) -> None:
        self.model = model
        self.server_rank = server_rank
        self.group = group
        self.ranks = dist.get_world_size(group)
        first = next(iter(trainable(model).values()))
        self.bucket = max(1, bucket_bytes // first.element_size())
        # Gloo moves what is on the CPU, NCCL what is on a GPU.
        device = torch.device("cpu") if dist.get_backend(group) == "gloo" else first.device
        self._like = torch.empty(0, dtype=first.dtype, device=device)

    @property
    def size(self) -> int:
        """d, the number of trained parameters."""
        return sum(parameter.numel() for parameter in trainable(self.model).values())

    def rows(self, number: int) -> list[Tensor]:
        """Room for so many vectors [d] that travel."""
        return [self._like.new_empty(self.size) for _ in range(number)]

    def send(self, tensors: Sequence[Tensor]) -> None:
        """To the server, as one vector [d]; two buckets are under way at any time."""
        under_way: deque[tuple[Work | None, Tensor]] = deque()
        for piece in _pieces(tensors, self.bucket):
            bucket = self._joined(piece)
            under_way.append((dist.isend(bucket, self._global(self.server_rank), self.group), bucket))
            if len(under_way) == 2:
                _wait([under_way.popleft()[0]])
        _wait([work for work, _ in under_way])

    def coming(self, rank: int, row: Tensor) -> "list[Work | None]":
        """A rank's vector is on its way into a row [d]; wait for all of these.

        What does not come stays NaN: of too short a message nothing is used, least of all what another rank sent.
        """
        row.fill_(torch.nan)
        return [dist.irecv(bucket, self._global(rank), self.group) for bucket in row.split(self.bucket)]

    def tell(self, skipped: str) -> None:
        """All ranks, why the step is skipped; nothing if it is not."""
        text = torch.tensor(list(skipped.encode()), dtype=torch.uint8, device=self._like.device)
        self._broadcast(torch.tensor([len(text)], device=self._like.device))
        if skipped:
            self._broadcast(text)

    def hear(self) -> None:
        """Raises what the server tells, if the step is skipped."""
        length = torch.zeros(1, dtype=torch.int64, device=self._like.device)
        self._broadcast(length)
        if int(length):
            text = torch.empty(int(length), dtype=torch.uint8, device=self._like.device)
            self._broadcast(text)
            raise TooFewUsable.said(bytes(text.tolist()).decode())

    def give(self) -> None:
        """The parameters and running statistics of this rank to all others."""
        for tensors in self._shared():
            for piece in _pieces(tensors, self.bucket):
                self._broadcast(self._joined(piece))

    def receive(self) -> None:
        """The other side of `give`."""
        for tensors in self._shared():
            whole = [tensor.contiguous() for tensor in tensors]  # themselves, but for odd layouts
            for piece in _pieces(whole, self.bucket):
                bucket = self._like.new_empty(sum(len(part) for part in piece), dtype=piece[0].dtype)
                self._broadcast(bucket)
                for part, new in zip(piece, bucket.split([len(part) for part in piece]), strict=True):
                    part.copy_(new)
            for tensor, new in zip(tensors, whole, strict=True):
                if tensor.data_ptr() != new.data_ptr():
                    tensor.copy_(new)

    def _shared(self) -> tuple[list[Tensor], list[Tensor]]:
        """What all ranks have in common, as it is now: trained parameters, and running statistics."""
        statistics = [b for norm in norms_of(self.model) for b in (norm.running_mean, norm.running_var)]
        return [p.detach() for p in trainable(self.model).values()], [b for b in statistics if b is not None]

    def _joined(self, piece: Sequence[Tensor]) -> Tensor:
        return (piece[0] if len(piece) == 1 else torch.cat(list(piece))).to(self._like.device)

    def _broadcast(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, self._global(self.server_rank), self.group)

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class _Arriving:
    """The vectors [d] of all ranks, one after the other; the next is on its way while one is looked at."""

    def __init__(self, line: _Line, mine: Sequence[Tensor], server: Server) -> None:
        self._line, self._mine, self._server = line, mine, server

    def __len__(self) -> int:
        return self._line.ranks

    def __iter__(self) -> Iterator[Tensor | Sequence[Tensor]]:
        line = self._line
        others = [rank for rank in range(line.ranks) if rank != line.server_rank]
        rows = _ROWS.get(self._server, [])  # taken in turns
        if len(rows) < min(2, len(others)):
            rows = _ROWS[self._server] = line.rows(min(2, len(others)))
        coming = line.coming(others[0], rows[0]) if others else []
        for rank in range(line.ranks):
            if rank == line.server_rank:
                yield self._mine[0] if self._mine[0].shape == (line.size,) else self._mine
                continue
            k = others.index(rank)
            _wait(coming)
            if k + 1 < len(others):
                coming = line.coming(others[k + 1], rows[(k + 1) % 2])
            yield rows[k % 2]


def _pieces(tensors: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """The numbers of tensors, one after the other, in pieces of `size`, the last perhaps less: lists of views."""
    piece: list[Tensor] = []
    room = size
    for tensor in tensors:
        rest = tensor.reshape(-1)
        while len(rest):
            piece.append(rest[:room])
            rest, room = rest[room:], room - len(rest[:room])
            if room == 0:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def _wait(works: "Sequence[Work | None]") -> None:
    for work in works:
        if work is not None:
            work.wait()
