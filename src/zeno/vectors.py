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
    found = [t.detach() for t in tensors if not (isinstance(t, nn.Parameter) and not t.requires_grad)]
    if not found:
        raise ValueError("zeno.flatten needs at least one tensor. Found none.")
    return torch.cat([tensor.flatten() for tensor in found])


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradient of each parameter that is trained, in their order; 0 for one that `backward` did not reach."""
    parameters = list(trainable(model).values())
    if all(parameter.grad is None for parameter in parameters):
        raise ValueError(
            f"zeno.flatten needs a model with gradients. Found none in {type(model).__name__}. "
            "Call loss.backward() before it; for the parameters themselves pass model.parameters()."
        )
    return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]


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
