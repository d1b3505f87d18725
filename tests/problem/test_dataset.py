"""Datasets, splits and the draws that everything random comes from."""

import pickle

import numpy as np
import pytest
import torch

import zeno
from zeno.problem.dataset import draw, generator, hold_out

LABELS = torch.arange(10).repeat_interleave(100)[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]


def test_generators_repeat_and_differ_in_each_of_seed_role_worker_and_step() -> None:
    def first(*key: object) -> int:
        return int(generator(*key).integers(2**63))  # type: ignore[arg-type]

    assert first(1, "batch", 2, 3) == first(1, "batch", 2, 3)
    keys = [(1, "batch", 2, 3), (0, "batch", 2, 3), (1, "score", 2, 3), (1, "batch", 3, 2), (1, "batch", 2, 4)]
    assert len({first(*key) for key in keys}) == len(keys)


def test_images_stay_bytes_and_are_converted_to_float_by_the_batch() -> None:
    dataset = zeno.Dataset(torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8), torch.tensor([3, 4]))
    assert dataset.inputs.dtype == torch.uint8
    batch = dataset.batch(torch.tensor([1]))
    torch.testing.assert_close(batch.inputs, torch.tensor([[0.2, 0.4]]))
    assert batch.targets.tolist() == [4]


def test_a_pickled_dataset_is_read_without_a_copy() -> None:
    dataset = zeno.Dataset(torch.arange(24, dtype=torch.uint8).view(4, 6), torch.arange(4), classes=4, scale=0.5)
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(dataset, protocol=5, buffer_callback=buffers.append)
    there = [memoryview(buffer).toreadonly() for buffer in buffers]
    found = pickle.loads(text, buffers=there)
    assert torch.equal(found.inputs, dataset.inputs)
    assert torch.equal(found.targets, dataset.targets)
    assert (found.classes, found.scale) == (4, 0.5)
    assert found.inputs.data_ptr() == np.frombuffer(there[0], np.uint8).ctypes.data, "not a copy"
    odd = zeno.Dataset(torch.ones(2, 2, dtype=torch.bfloat16), torch.arange(2))
    assert torch.equal(pickle.loads(pickle.dumps(odd)).inputs, odd.inputs)


def test_inputs_that_are_not_bytes_are_not_converted() -> None:
    dataset = zeno.Dataset(torch.tensor([[2.5], [3.5]]), torch.tensor([0.5, 1.5]))
    assert dataset.batch(torch.tensor([0])).inputs.tolist() == [[2.5]]


def test_a_dataset_needs_as_many_targets_as_inputs() -> None:
    with pytest.raises(ValueError, match="Found 3 inputs and 2 targets"):
        zeno.Dataset(torch.zeros(3, 1), torch.zeros(2))


def test_samples_are_drawn_from_the_given_indices_with_replacement() -> None:
    drawn = draw(torch.tensor([5, 7]), 1000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {5, 7}
    assert 400 < int((drawn == 5).sum()) < 600


@pytest.mark.parametrize("split", [zeno.Disjoint(), zeno.ByLabel(), zeno.Dirichlet(0.1), zeno.Dirichlet(100.0)])
def test_splits_give_every_sample_to_one_worker_and_repeat(split: zeno.Split) -> None:
    shards = split(LABELS, 20, generator(0, "split"))
    assert sorted(torch.cat(list(shards)).tolist()) == list(range(1000))
    assert min(len(shard) for shard in shards) > 0
    again = split(LABELS, 20, generator(0, "split"))
    assert all(torch.equal(a, b) for a, b in zip(shards, again, strict=True))


def test_iid_gives_every_sample_to_every_worker() -> None:
    assert [len(shard) for shard in zeno.IID()(LABELS, 3, generator(0, "split"))] == [1000] * 3


def labels_seen(split: zeno.Split) -> float:
    """How many labels a worker sees, on average over 20 of them."""
    shards = split(LABELS, 20, generator(0, "split"))
    return sum(len(LABELS[shard].unique()) for shard in shards) / 20


def test_splits_differ_in_how_many_labels_a_worker_sees() -> None:
    assert labels_seen(zeno.ByLabel()) == 1  # 20 shards of 50 out of 10 labels of 100
    assert labels_seen(zeno.Disjoint()) > 9
    assert labels_seen(zeno.Dirichlet(0.05)) < 4 < 9 < labels_seen(zeno.Dirichlet(100.0))


def test_by_label_and_dirichlet_raise_for_targets_that_are_not_labels() -> None:
    for split in (zeno.ByLabel(), zeno.Dirichlet()):
        with pytest.raises(ValueError, match="needs class labels"):
            split(torch.zeros(10), 2, generator(0, "split"))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_dirichlet_raises_for_an_alpha_that_is_not_positive_and_finite(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        zeno.Dirichlet(alpha)


def test_the_server_samples_everything_or_keeps_a_share_that_no_worker_sees() -> None:
    server, workers = hold_out(1000, 0.0, generator(0, "hold out"))
    assert len(server) == len(workers) == 1000
    server, workers = hold_out(1000, 0.05, generator(0, "hold out"))
    assert len(server) == 50
    assert sorted(server.tolist() + workers.tolist()) == list(range(1000))
