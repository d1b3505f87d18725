"""What a `Guard` requires of its arguments, with errors that say what to do instead."""

from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from zeno.problem.problem import norms_of
from zeno.rules.zeno_auto import ZenoAuto

CALLER = "zeno.distributed.Guard"


def check(model: object, rule: object, every: int, compare_every: int, scale: object) -> None:
    """Raises for mistakes by the caller."""
    if not isinstance(model, DistributedDataParallel):
        sharded = "FSDP" in "".join(kind.__name__ for kind in type(model).__mro__)
        advice = (
            "A Guard does not support it: its ranks never hold a whole gradient at once."
            if sharded
            else "Pass DistributedDataParallel(model), or use zeno.distributed.step."
        )
        raise ValueError(f"{CALLER} needs a model in DistributedDataParallel. Found {type(model).__name__}. {advice}")
    if rule is not None and not isinstance(rule, ZenoAuto):
        raise ValueError(
            f"{CALLER} needs a rule that judges by sketches, zeno.ZenoAuto. Found {rule!r}. For other rules there is "
            "zeno.distributed.step."
        )
    if every < 1 or compare_every < 0:
        raise ValueError(
            f"{CALLER} needs every of at least 1 and compare_every of at least 0. Found {every} and {compare_every}."
        )
    if not isinstance(scale, GradScaler | int | float) or (not isinstance(scale, GradScaler) and not scale > 0):
        raise ValueError(f"{CALLER} needs scale as a number above 0 or a torch.amp.GradScaler. Found {scale!r}.")
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms_of(model.module)):
        raise ValueError(
            f"{CALLER} cannot protect SyncBatchNorm, which mixes the activations of all ranks, also of faulty ones, "
            "before there is a gradient to judge. Use BatchNorm."
        )
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ValueError(f"{CALLER} needs floating-point parameters. Found {name!r}, which is {parameter.dtype}.")
