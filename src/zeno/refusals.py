"""What the server of your own loop cannot work with, and what to do instead."""

import warnings

from torch import nn
from torch.optim import Optimizer

from zeno.vectors import trainable

CANNOT = {  # optimizers that a gradient is not enough for -> why
    "LBFGS": "evaluates the loss by itself, several times a step",
    "SparseAdam": "takes sparse gradients only, while updates are dense",
}


def check(model: object, loss: object, optimizer: object, rule: object) -> None:
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
    if not callable(rule):
        raise ValueError(f"A Server needs rule as a rule, such as zeno.Zeno(trim=4). Found {rule!r}.")
    parameters = trainable(model)
    for name, parameter in parameters.items():
        sharded = hasattr(parameter, "device_mesh")  # as FSDP leaves it
        if sharded or not parameter.is_floating_point():
            kind = "sharded" if sharded else f"of {parameter.dtype}"
            raise ValueError(f"A Server needs whole parameters of floating point. Found {name!r}, which is {kind}.")
    where = [p.data_ptr() for p in parameters.values() if p.numel()]
    if len(set(where)) < len(where):
        raise ValueError(
            "A Server needs parameters with memory of their own. Found two that share it. Tie weights by using one "
            "Parameter in both places, as in `decoder.weight = encoder.weight`."
        )
    check_optimizer(model, optimizer)


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    name = type(optimizer).__name__
    if name in CANNOT:
        raise ValueError(
            f"A Server needs an optimizer that a gradient is enough for. Found {name}, which {CANNOT[name]}."
        )
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


def check_rho(rule: object, lr: float) -> None:
    """Warns where zeros would score higher than the true gradient: lr * ||g||^2 - rho * ||g||^2 is below 0."""
    rho = getattr(rule, "rho", None)
    if isinstance(rho, float | int) and 0 < lr <= rho:
        warnings.warn(
            f"rho={rho} is not below the learning rate of {lr}: zeros would score higher than the true gradient. "
            f"Pass a smaller rho, such as {lr / 100:.0e}, or rho='auto'.",
            stacklevel=4,
        )
