"""The server's samples: what is drawn, and from which half."""

import torch

import zeno
from zeno.server.samples import DatasetSamples


def samples(seed: int = 0, every_second: float = 1.0) -> DatasetSamples:
    """1,000 samples; the target is the index, and the inputs of every second one are others."""
    inputs = torch.zeros(1000, 1)
    inputs[1::2] = every_second
    return DatasetSamples(zeno.Dataset(inputs, torch.arange(1000), classes=1000), torch.arange(1000), seed)


def half(source: DatasetSamples, number: int) -> set[int]:
    drawn = [source.take(500, "score", step, half=number).targets for step in range(20)]
    return set(torch.cat(drawn).tolist())


def test_a_sample_is_in_one_half_for_good() -> None:
    source = samples()
    first, second = half(source, 0), half(source, 1)
    assert not first & second
    assert first | second == set(range(1000))
    assert len(first) == 500
    assert half(samples(), 0) == first
    assert half(samples(seed=1), 0) != first


def test_the_halves_of_samples_that_alternate_are_alike() -> None:
    # In MNIST, every second image is from another group of writers.
    source = samples()
    shares = [float(source.take(10_000, "score", 0, half=number).inputs.mean()) for number in (0, 1)]
    assert all(abs(share - 0.5) < 0.1 for share in shares), shares
