"""The networks of the built-in tasks, built for the shape of a sample and the number of classes."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ChannelsLast(nn.Module):
    """Converts pictures to the channels-last layout, which makes convolutions about 1.5 times faster."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=torch.channels_last)


def mlp(shape: Sequence[int], classes: int, hidden: int = 64) -> nn.Module:
    """One hidden layer of ReLU units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(shape: Sequence[int], classes: int, width: int = 64, dropout: float = 0.25) -> nn.Module:
    """The paper's network: 4 convolutions with BatchNorm, 2 dense layers; 1,310,922 parameters on CIFAR-10."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"The cnn needs samples of shape [channels, height, width], at least 4 pixels a side. Found {list(shape)}. "
            "Use the model mlp."
        )
    channels, height, breadth = shape
    features = 2 * width * (height // 4) * (breadth // 4)

    def conv(num_in: int, num_out: int) -> list[nn.Module]:
        return [nn.Conv2d(num_in, num_out, kernel_size=3, padding=1), nn.ReLU(), nn.BatchNorm2d(num_out)]

    model = nn.Sequential(
        ChannelsLast(),
        *conv(channels, width),
        *conv(width, width),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        *conv(width, 2 * width),
        *conv(2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(features, 2 * width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(2 * width, classes),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model


def small_cnn(shape: Sequence[int], classes: int, dropout: float = 0.25) -> nn.Module:
    """The paper's network at a quarter of its width, for small machines."""
    return cnn(shape, classes, width=16, dropout=dropout)


MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn, "small_cnn": small_cnn}
