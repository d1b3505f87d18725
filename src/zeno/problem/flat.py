"""A model's numbers as one vector [d], as they travel, and back; only what is trained counts."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def flatten(source: nn.Module | Iterable[Tensor] | Mapping[str, Tensor]) -> Tensor:
    """The gradients of a model [d], as a worker sends them; or tensors, in their order, as one vector.

    Of a model: what `backward` left in the parameters that are trained, and 0 for one that it did not reach. To get the
    parameters themselves, pass `model.parameters()`; frozen ones are left out there too.
    """
    if isinstance(source, nn.Module):
        return torch.cat([gradient.flatten() for gradient in gradients(source)])
    tensors = source.values() if isinstance(source, Mapping) else source
    found = [t for t in tensors if not (isinstance(t, nn.Parameter) and not t.requires_grad)]
    if not found or not all(isinstance(tensor, Tensor) for tensor in found):
        kinds = sorted({type(one).__name__ for one in found})
        raise ValueError(f"zeno.flatten needs tensors, at least one. Found {', '.join(kinds) or 'none'}.")
    return torch.cat([tensor.detach().flatten() for tensor in found])


def gradients(model: nn.Module, asked_by: str = "zeno.flatten") -> list[Tensor]:
    """The gradient of each parameter that is trained, in their order; 0 for one that `backward` did not reach."""
    parameters = trainable(model)
    if all(parameter.grad is None for parameter in parameters.values()):
        raise ValueError(
            f"{asked_by} needs a model with gradients. Found none in {type(model).__name__}. "
            "Call loss.backward() before it; for the parameters themselves pass model.parameters() to zeno.flatten."
        )
    sparse = [name for name, p in parameters.items() if p.grad is not None and p.grad.layout != torch.strided]
    if sparse:
        raise ValueError(f"{asked_by} needs dense gradients. Found a sparse one in {sparse[0]!r}. Pass sparse=False.")
    return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters.values()]


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The parts of a vector [d] by the names of the model's parameters, as views in their shapes.

    `model.load_state_dict(zeno.unflatten(vector, model), strict=False)` puts parameters into a model.
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
