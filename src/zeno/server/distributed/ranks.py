"""What the ranks of a process group tell each other, beside gradients."""

import hashlib
import socket
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from zeno.records.names import is_name

if TYPE_CHECKING:  # some builds of torch lack them
    from torch.distributed import ProcessGroup

DIFFERENCE_BYTES = 400  # of a text that says how a rank differs
MAX_DIFFERENCES = 3  # in an error
MACHINE_BYTES = 64  # of the name of a machine, which has no more on Linux


class Ranks:
    """A process group. Each method is called by all of its ranks, in the same order."""

    def __init__(self, group: "ProcessGroup | None", like: Tensor, caller: str) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                f"{caller} needs a process group. Found none. Start the script with torchrun and call "
                "torch.distributed.init_process_group() in it."
            )
        self.group = group
        self.caller = caller
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        # Gloo sends from the CPU, NCCL from a GPU.
        self.device = torch.device("cpu") if dist.get_backend(group) == "gloo" else like.device

    def gather(self, own: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape and type, in order."""
        own = own.to(self.device).contiguous()
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own, self.group)
        return found

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """The bytes of all ranks, which are as many on each, in order."""
        return [bytes(one.tolist()) for one in self.gather(torch.tensor(list(content), dtype=torch.uint8))]

    def machines(self) -> dict[int, str]:
        """Rank -> the name of the machine that it runs on."""
        names = self.gather_bytes(socket.gethostname().encode()[:MACHINE_BYTES].ljust(MACHINE_BYTES))
        texts = enumerate(name.decode(errors="replace").strip() for name in names)
        return {rank: text for rank, text in texts if is_name(text)}

    def share(self, tensor: Tensor, rank: int) -> None:
        """Copies a rank's tensor to all, in place."""
        there = tensor.to(self.device).contiguous()
        dist.broadcast(there, self.global_rank(rank), self.group)
        if there.data_ptr() != tensor.data_ptr():
            tensor.copy_(there)

    def share_text(self, text: str, rank: int) -> str:
        """The text of a rank, on every rank."""
        texts = [text]
        dist.broadcast_object_list(texts, self.global_rank(rank), self.group, self.device)
        return texts[0]

    def compare(self, description: list[str]) -> None:
        """Raises the same error on every rank if the description of one, in lines, is not that of rank 0."""
        if len(set(self.gather_bytes(hashlib.sha256("\n".join(description).encode()).digest()))) == 1:
            return
        first = self.share_text("\n".join(description), rank=0).split("\n")
        pairs = zip_longest(description, first, fillvalue="nothing more")
        differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
        text = "" if differing is None else f"{differing[0]} on rank {self.rank}, {differing[1]} on rank 0"
        gathered = self.gather_bytes(text.encode()[:DIFFERENCE_BYTES].ljust(DIFFERENCE_BYTES))
        found = [text.decode(errors="replace").strip() for text in gathered if text.strip()]
        more = f"; and {len(found) - MAX_DIFFERENCES} more" if len(found) > MAX_DIFFERENCES else ""
        raise ValueError(
            f"{self.caller} needs the same model and the same arguments on all ranks. Found "
            f"{'; '.join(found[:MAX_DIFFERENCES])}{more}. Create the model in the same way on every rank."
        )

    def global_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)
