"""Gradients and parameters as one vector, there and back."""

import torch
import torch.nn.functional as F

import zeno
from support.own_loops import INPUTS, TARGETS, layer, net


def test_flatten_and_unflatten_are_inverse() -> None:
    model = net()
    vector = torch.arange(74.0)
    parts = zeno.unflatten(vector, model)
    assert list(parts) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(parts["0.weight"], torch.arange(48.0).view(8, 6))
    assert torch.equal(zeno.flatten(parts), vector)
    model.load_state_dict(parts, strict=False)
    assert torch.equal(zeno.flatten(model.parameters()), vector)


def test_flatten_of_a_model_is_its_gradient() -> None:
    model = net()
    F.cross_entropy(model(INPUTS), TARGETS).backward()
    assert torch.equal(
        zeno.flatten(model), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    )
    layer(model, 2).bias.grad = None
    assert zeno.flatten(model)[-2:].tolist() == [0.0, 0.0]
