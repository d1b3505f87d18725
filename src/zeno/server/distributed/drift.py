"""Replicas that drift: a bit that flipped in memory, or an update that was missed."""

import hashlib
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from zeno.server.distributed.ranks import Ranks
from zeno.workers.reply import ErrorKind, ReplyError

DRIFTED = ReplyError(ErrorKind.DRIFTED, "had other parameters than most ranks")
WORD = 8  # bytes


def checksum(tensors: Iterable[Tensor]) -> bytes:
    """8 bytes that change with any single bit, and with nearly any other change."""
    sums = [total for tensor in tensors for total in _sums(tensor.detach().reshape(-1).view(torch.uint8))]
    return hashlib.blake2b(torch.stack(sums).cpu().numpy().tobytes(), digest_size=8).digest()


def _sums(content: Tensor) -> tuple[Tensor, Tensor]:
    """Of whole words, modulo 2**64, and of the bytes after them."""
    if content.storage_offset() % WORD:
        content = content.clone()
    whole = content.numel() // WORD * WORD
    return content[:whole].view(torch.int64).sum(), content[whole:].sum(dtype=torch.int64)


class Replicas:
    """The parameters of all ranks, which should be equal."""

    def __init__(self, ranks: Ranks, model: nn.Module, trusted: int) -> None:
        self._ranks = ranks
        self._model = model
        self._trusted = trusted  # the rank that is right when as many say one thing as another
        self._source = trusted

    def drifted(self) -> list[int]:
        """The ranks whose parameters differ from those that most have, in order."""
        found = self._ranks.gather_bytes(checksum(self._model.parameters()))
        votes = Counter(found)
        right = max(votes, key=lambda one: (votes[one], one == found[self._trusted]))
        self._source = found.index(right)
        return [rank for rank, one in enumerate(found) if one != right]

    def repair(self) -> None:
        """Copies the parameters of a rank that agrees with most to all."""
        for parameter in self._model.parameters():
            self._ranks.share(parameter.data, self._source)  # .data: backward may still be under way
