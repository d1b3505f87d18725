"""What the server of your own loop cannot work with, and what to do instead."""

import itertools
import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem import Problem, kind_of, norms_of
from zeno.problem.flat import trainable

CANNOT = {  # optimizers that a gradient is not enough for -> why
    "LBFGS": "evaluates the loss by itself, several times a step",
    "SparseAdam": "takes sparse gradients only, while updates are dense",
}


def check(model: object, loss: object, optimizer: object, rule: object, data: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"A Server needs model as a torch.nn.Module. Found {type(model).__name__}.")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"A Server needs the model itself. Found it in {type(model).__name__}, which would average what all send "
            "before anybody looked at it. Pass model.module."
        )
    if not callable(loss):
        raise ValueError(f"A Server needs loss as a function of outputs and targets. Found {type(loss).__name__}.")
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"A Server needs optimizer as a torch.optim.Optimizer. Found {type(optimizer).__name__}.")
    if not callable(rule) or isinstance(rule, type):
        raise ValueError(f"A Server needs rule as a rule, such as zeno.Zeno(trim=4). Found {rule!r}.")
    parameters = trainable(model)
    for name, parameter in parameters.items():
        sharded = hasattr(parameter, "device_mesh")  # as FSDP leaves it
        if sharded or not parameter.is_floating_point():
            kind = "sharded" if sharded else f"of {parameter.dtype}"
            raise ValueError(f"A Server needs whole parameters of floating point. Found {name!r}, which is {kind}.")
    if _share_memory([*model.parameters(), *model.buffers()]):
        raise ValueError(
            "A Server needs parameters with memory of their own. Found two that share it. Tie weights by using one "
            "Parameter in both places, as in `decoder.weight = encoder.weight`."
        )
    norms = norms_of(model)
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        raise ValueError(
            "A Server tries candidates on its own, and SyncBatchNorm would wait for other ranks. Use BatchNorm instead."
        )
    if norms and data is None:
        raise ValueError(
            "A Server needs data for a model with BatchNorm: running statistics come from samples of its own, never "
            f"from a worker. Found data=None with {type(norms[0]).__name__}."
        )
    check_optimizer(model, optimizer)


def _share_memory(tensors: Iterable[Tensor]) -> bool:
    spans = []
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if tensor.numel() and tensor.layout == torch.strided:
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            spans.append((tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()))
    spans.sort()
    return any(start < end_before for (_, end_before), (start, _) in itertools.pairwise(spans))


def check_unchanged(model: nn.Module, problem: Problem) -> None:
    """Refuses a model whose parameters are others, or elsewhere, than when its problem was made."""
    own = trainable(model).values()
    if [id(p) for p in own] != [id(p) for p in problem.parameters]:
        raise ValueError(
            "A Server needs the parameters that it was made with. Found that others are trained now. Make a new Server "
            "after freezing or replacing some."
        )
    kinds = {kind_of(parameter) for parameter in own}
    if kinds != {problem.kind}:
        raise ValueError(
            f"A Server needs the model where it was: {problem.kind}. Found {', '.join(sorted(kinds))}. "
            "Make the Server after moving the model."
        )


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    name = type(optimizer).__name__
    if name in CANNOT:
        raise ValueError(
            f"A Server needs an optimizer that a gradient is enough for. Found {name}, which {CANNOT[name]}."
        )
    for group in optimizer.param_groups:
        lr = group.get("lr")
        if not isinstance(lr, float | int | Tensor):
            raise ValueError(f"A Server tries steps of the optimizer's lr. Found {name} with lr={lr}. Give it one.")
        if group.get("differentiable"):
            raise ValueError(f"A Server steps without a graph. Found {name} with differentiable=True. Leave it out.")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise ValueError(f"A Server lowers the loss. Found {name} with maximize=True. Negate the loss instead.")
    has = {id(p) for group in optimizer.param_groups for p in group["params"]}
    parameters = trainable(model)
    left_out = [parameter for parameter, p in parameters.items() if id(p) not in has]
    if left_out:
        raise ValueError(
            f"A Server needs every trained parameter in the optimizer. Found {len(left_out)} that are not, such as "
            f"{left_out[0]!r}. Add them, or freeze them with requires_grad_(False)."
        )
    own = {id(p) for p in model.parameters()}
    if not has <= own:
        raise ValueError(
            f"A Server needs an optimizer of this model alone. Found {len(has - own)} parameters in {name} that are "
            "not the model's. Make the optimizer after replacing layers, or moving them."
        )


def check_rho(rule: object, rates: Iterable[float]) -> bool:
    """Warns where zeros may score higher than the true gradient, as lr * ||g||^2 - rho * ||g||^2 is below 0."""
    rho = getattr(getattr(rule, "rule", rule), "rho", None)  # of the one at the end of a chain
    lr = min((rate for rate in rates if rate > 0), default=math.inf)
    if not isinstance(rho, float | int) or lr > rho:
        return False
    warnings.warn(
        f"rho={rho} is not below the smallest learning rate, {lr:.3g}: zeros may score higher than the true gradient. "
        f"Pass a smaller rho, such as {lr / 100:.0e}, or rho='auto'.",
        stacklevel=4,
    )
    return True
