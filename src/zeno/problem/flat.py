"""A model's trainable parameters and gradients as one flat vector [d], and back."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from zeno.problem.dataset import as_tensor

METACLASSES = (type, type(Tensor), type(nn.Parameter))  # a class of another one may override what a class is


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def plain_tensor(value: object) -> Tensor | None:
    """A tensor or a NumPy array as a plain tensor of the same memory; None for anything else.

    Nothing that a subclass overrides is called. A subclass that is not one tensor in memory gives None.
    """
    kind = type(value)
    if type(kind) not in METACLASSES or not issubclass(kind, Tensor | np.ndarray):
        return None
    if isinstance(value, np.ndarray):
        array = np.ndarray.view(value, np.ndarray)
        if array.dtype.kind not in "fiu":
            return None
        return as_tensor(np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape))
    own = kind.__mro__[: kind.__mro__.index(Tensor)]
    if any("__torch_dispatch__" in vars(base) for base in own):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        alias: Tensor = value if kind is Tensor else Tensor.as_subclass(value, Tensor)  # type: ignore[arg-type,assignment]
        return Tensor.detach(alias)  # not alias.detach(), which may be an attribute


def flatten(source: nn.Module | Iterable[Tensor] | Mapping[str, Tensor]) -> Tensor:
    """The gradients of a model as one vector [d], as a worker sends them; or tensors, in order, as one vector.

    For a model: the gradients that `backward` left in the trainable parameters, 0 where it left none. For the
    parameters themselves pass `model.parameters()`; frozen ones are left out there too.
    """
    if isinstance(source, nn.Module):
        return torch.cat([gradient.flatten() for gradient in gradients(source)])
    tensors = source.values() if isinstance(source, Mapping) else source
    found = [t for t in tensors if not (isinstance(t, nn.Parameter) and not t.requires_grad)]
    if not found or not all(isinstance(tensor, Tensor) for tensor in found):
        kinds = sorted({type(one).__name__ for one in found})
        raise ValueError(f"zeno.flatten needs at least one tensor. Found {', '.join(kinds) or 'none'}.")
    return torch.cat([tensor.detach().flatten() for tensor in found])


def gradients(model: nn.Module, caller: str = "zeno.flatten") -> list[Tensor]:
    """The gradient of each trainable parameter, in order; 0 where `backward` left none."""
    parameters = trainable(model)
    if all(parameter.grad is None for parameter in parameters.values()):
        raise ValueError(
            f"{caller} needs a model with gradients. Found none in {type(model).__name__}. Call loss.backward() first; "
            "for the parameters themselves pass model.parameters() to zeno.flatten."
        )
    sparse = [name for name, p in parameters.items() if p.grad is not None and p.grad.layout != torch.strided]
    if sparse:
        raise ValueError(f"{caller} needs dense gradients. Found a sparse one in {sparse[0]!r}. Pass sparse=False.")
    return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters.values()]


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The parts of a vector [d] by the names of the model's trainable parameters, as views in their shapes.

    `model.load_state_dict(zeno.unflatten(vector, model), strict=False)` loads parameters into a model.
    """
    parameters = trainable(model)
    sizes = [parameter.numel() for parameter in parameters.values()]
    if vector.shape != (sum(sizes),):
        raise ValueError(
            f"zeno.unflatten needs one vector of {sum(sizes)} numbers for this {type(model).__name__}. "
            f"Found shape {list(vector.shape)}."
        )
    parts = vector.split(sizes)
    return {name: part.view(p.shape) for (name, p), part in zip(parameters.items(), parts, strict=True)}
