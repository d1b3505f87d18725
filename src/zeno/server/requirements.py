"""What a `Server` requires of model, loss, optimizer and rule, with errors that say what to do instead."""

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zeno.problem.flat import trainable
from zeno.problem.problem import Problem, kind_of, norms_of
from zeno.rules.chain import Chain
from zeno.rules.rule import Rule
from zeno.rules.zeno import Zeno

UNSUITABLE = {  # optimizers for which a gradient is not enough, and why
    "LBFGS": "evaluates the loss itself, several times per step",
    "SparseAdam": "takes sparse gradients only, while updates are dense",
}


def check(model: object, optimizer: object, rule: object, data: object) -> None:
    """Raises for whatever a Server cannot work with."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"A Server needs model as a torch.nn.Module. Found {type(model).__name__}.")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"A Server needs the model itself. Found it wrapped in {type(model).__name__}, which averages all "
            "gradients before they can be checked. Pass model.module."
        )
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"A Server needs optimizer as a torch.optim.Optimizer. Found {type(optimizer).__name__}.")
    if not isinstance(rule, Rule):
        raise ValueError(f"A Server needs rule as a zeno.Rule, such as zeno.Zeno(trim=4). Found {rule!r}.")
    for name, parameter in trainable(model).items():
        sharded = hasattr(parameter, "device_mesh")  # as FSDP leaves it
        if sharded or not parameter.is_floating_point():
            kind = "sharded" if sharded else f"of {parameter.dtype}"
            raise ValueError(f"A Server needs whole floating-point parameters. Found {name!r}, which is {kind}.")
    if _share_memory([*model.parameters(), *model.buffers()]):
        raise ValueError(
            "A Server needs parameters that do not share memory. Found two that do. Tie weights by using one "
            "Parameter in both places, as in `decoder.weight = encoder.weight`."
        )
    norms = norms_of(model)
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        raise ValueError(
            "A Server evaluates candidates on one rank, where SyncBatchNorm would wait for the others. Use BatchNorm."
        )
    if norms and data is None:
        raise ValueError(
            "A Server needs data for a model with BatchNorm: running statistics are computed from the server's "
            f"samples, never from a worker's. Found data=None with {type(norms[0]).__name__}."
        )
    if rule.samples and data is None:
        raise ValueError(f"{rule} needs samples on the server. Found data=None. Pass a DataLoader.")
    if (rule.samples or norms) and isinstance(data, Iterator):
        raise ValueError(
            "A Server needs data that can be iterated again when it ends. "
            f"Found {type(data).__name__}, which cannot. Pass a DataLoader or a list of batches."
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
    """Raises if the model has other trainable parameters than when the Server was created, or has moved."""
    own = trainable(model).values()
    if [id(p) for p in own] != [id(p) for p in problem.parameters]:
        raise ValueError(
            "The trainable parameters have changed since this Server was created. Create a new Server after freezing "
            "or replacing parameters."
        )
    kinds = {kind_of(parameter) for parameter in own}
    if kinds != {problem.kind}:
        raise ValueError(
            f"A Server needs its model to stay {problem.kind}. Found {', '.join(sorted(kinds))}. "
            "Move the model before creating the Server."
        )


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Raises for an optimizer that does not fit the model, or that needs more than a gradient."""
    name = type(optimizer).__name__
    if name in UNSUITABLE:
        raise ValueError(
            f"A Server needs an optimizer that steps on gradients alone. Found {name}, which {UNSUITABLE[name]}."
        )
    for group in optimizer.param_groups:
        lr = group.get("lr")
        if not isinstance(lr, float | int | Tensor):
            raise ValueError(f"A Server tries steps of the optimizer's lr. Found {name} with lr={lr}. Set one.")
        if group.get("differentiable"):
            raise ValueError(f"A Server needs differentiable=False. Found {name} with differentiable=True.")
        if group.get("maximize"):
            raise ValueError(f"A Server minimises the loss. Found {name} with maximize=True. Negate the loss instead.")
    has = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [parameter for parameter, p in trainable(model).items() if id(p) not in has]
    if left_out:
        raise ValueError(
            f"A Server needs every trainable parameter in the optimizer. Found {len(left_out)} that are not, such as "
            f"{left_out[0]!r}. Add them, or freeze them with requires_grad_(False)."
        )
    own = {id(p) for p in model.parameters()}
    if not has <= own:
        raise ValueError(
            f"A Server needs an optimizer over this model only. Found {len(has - own)} parameters in {name} that are "
            "not the model's. Create the optimizer after replacing or moving layers."
        )


def check_rho(rule: Rule, rates: Iterable[float]) -> bool:
    """Warns where zeros may score higher than the true gradient, as lr * ||g||^2 - rho * ||g||^2 is below 0."""
    last = rule.rule if isinstance(rule, Chain) else rule
    lr = min((rate for rate in rates if rate > 0), default=math.inf)
    if not isinstance(last, Zeno) or lr > last.rho:
        return False
    warnings.warn(
        f"rho={last.rho} is not below the smallest learning rate, {lr:.3g}: zeros may score higher than the true "
        f"gradient. Pass a smaller rho, such as {lr / 100:.0e}, or use zeno.ZenoAuto().",
        stacklevel=4,
    )
    return True


def identity(rule: Rule) -> str:
    """A text by which a saved state is matched to its rule: the repr, or the class if it defines no repr."""
    if isinstance(rule, Chain):
        return " + ".join(identity(part) if isinstance(part, Rule) else repr(part) for part in rule.parts)
    kind = type(rule)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__repr__ is object.__repr__ else repr(rule)
