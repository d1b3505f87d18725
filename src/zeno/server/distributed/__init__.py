"""Zeno among ranks started by `torchrun`.

`Guard` protects a job with DistributedDataParallel at about the price of its all-reduce: ranks find the weights of
`ZenoAuto` from short sketches of their gradients. `step` is for any other rule: one rank receives the gradients of all.
"""

from zeno.server.distributed.gather import step as step
from zeno.server.distributed.guard import Guard as Guard

__all__ = ["Guard", "step"]
