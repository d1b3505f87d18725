"""`zeno.distributed.step` with four real processes on loopback, and what it says when it is used wrongly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.processes import seen_by_ranks
from support.ranks import RANKS, backward, net

SCRIPT = Path(__file__).parent.parent / "support" / "ranks.py"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw, by scene."""
    return seen_by_ranks(SCRIPT, tmp_path_factory.mktemp("ranks"), RANKS, timeout=200)


def averaged(steps: int, ranks: range = range(RANKS), momentum: float = 0.9) -> Tensor:
    """SGD with the average of the ranks' gradients, in one process: what DDP does."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum)
    for step in range(steps):
        sent = []
        for rank in ranks:
            backward(model, rank, step)
            sent.append(zeno.flatten(model))
        for name, part in zeno.unflatten(torch.stack(sent).mean(dim=0), model).items():
            model.get_parameter(name).grad = part
        optimizer.step()
    return zeno.flatten(model.parameters())


def params(of: dict[str, Any], scene: str) -> Tensor:
    return torch.tensor(of[scene]["params"])


@pytest.mark.parametrize("scene", ["mean", "mean in tiny buckets", "the server is rank 2"])
def test_mean_equals_ddp(seen: list[dict[str, Any]], scene: str) -> None:
    for rank in seen:
        torch.testing.assert_close(params(rank, scene), averaged(6))


def test_all_ranks_have_bit_identical_parameters(seen: list[dict[str, Any]]) -> None:
    for scene in ("mean", "zeno", "auto", "too many NaN", "bits flip in memory", "other beginnings", "batch norm"):
        assert all(rank[scene]["params"] == seen[0][scene]["params"] for rank in seen), scene


@pytest.mark.parametrize("scene", ["zeno", "auto"])
def test_ranks_that_send_garbage_and_nan_do_no_harm(seen: list[dict[str, Any]], scene: str) -> None:
    assert min(rank[scene]["accuracy"] for rank in seen) > 0.9
    suspects = seen[0][scene]["suspects"]
    assert 2 in suspects
    assert set(suspects) <= {2, 3}
    weights = torch.tensor(seen[0][scene]["weights"][5:])  # [55, 4]
    if scene == "zeno":
        assert not weights[:, 2:].any()
    else:  # it may scale a huge candidate down to its own length, and shorten the mixture by a reversed one
        assert float(weights[:, 2].max()) < 1e-9
        assert float(weights[:, 3].max()) < 0.05
        assert float(weights[:, 3].mean()) < 0.005
    assert params(seen[3], scene).isfinite().all()


def test_only_the_server_returns_the_aggregate(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["mean"]["kept"] == [[True] * 4] * 6
    assert all(rank["mean"]["kept"] == [None] * 6 for rank in seen[1:])


def test_only_the_server_holds_the_state_of_the_optimizer(seen: list[dict[str, Any]]) -> None:
    assert [rank["zeno"]["state"] for rank in seen] == [4, 0, 0, 0]


def test_too_many_broken_ranks_raise_on_every_rank_and_training_continues(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        raised = rank["too many NaN"]["raised"]
        assert [text is None for text in raised] == [True, False, True, True]
        assert raised == seen[0]["too many NaN"]["raised"]
        assert "needs 2 usable candidates. Found 1 of 4. Worker 1 sent numbers that are not finite." in raised[1]


def test_corrupted_parameters_of_a_rank_are_correct_again_after_the_next_step(seen: list[dict[str, Any]]) -> None:
    torch.testing.assert_close(params(seen[1], "bits flip in memory"), averaged(6))


def test_all_ranks_get_the_running_statistics_of_the_server(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["batch norm"]["statistics"] == seen[0]["batch norm"]["statistics"]
    assert max(abs(value) for value in seen[0]["batch norm"]["statistics"][0]) > 0


def test_a_rank_can_send_its_momentum(seen: list[dict[str, Any]]) -> None:
    model, means = net(), list[Tensor]()
    for step in range(3):
        now = []
        for rank in range(RANKS):
            backward(model, rank, step)
            now.append(zeno.flatten(model))
        means = [0.5 * m + 0.5 * g for m, g in zip(means, now, strict=True)] if means else now
        x = zeno.flatten(model.parameters()) - 0.2 * torch.stack(means).mean(dim=0)
        model.load_state_dict(zeno.unflatten(x, model), strict=False)
    for one in seen:
        torch.testing.assert_close(params(one, "momentum"), x)


def test_a_group_of_some_ranks_trains_without_the_others(seen: list[dict[str, Any]]) -> None:
    expected = averaged(3, range(1, 4), momentum=0.0)
    for rank in seen[1:]:
        torch.testing.assert_close(params(rank, "some"), expected)


def test_a_message_that_is_too_short_is_not_used(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["too short"]["errors"] == {"3": ["not finite", "sent numbers that are not finite"]}
    assert seen[0]["too short"]["kept"] == [True, True, True, False]
    assert all(rank["too short"]["params"] == seen[0]["too short"]["params"] for rank in seen)


DIFFERENCES = {
    "one layer more": "1.weight [2, 2] torch.float32 on rank 2, nothing more on rank 0",
    "another type": "0.weight [16, 10] torch.float64 on rank 3, 0.weight [16, 10] torch.float32 on rank 0",
    "another shape": "weight [4, 6] torch.float32 on rank 1, weight [6, 4] torch.float32 on rank 0",
    "another name": "; ".join(
        f"weight [2, 3] torch.float32 on rank {rank}, 0.weight [2, 3] torch.float32 on rank 0" for rank in (1, 2, 3)
    ),
    "a frozen layer": "2.weight [2, 16] torch.float32 on rank 1, 0.weight [16, 10] torch.float32 on rank 0",
    "no statistics": "nothing more on rank 2, a BatchNorm1d with [16] torch.float32 on rank 0",
    "other buckets": "bucket_bytes=40 on rank 1, bucket_bytes=80 on rank 0",
}


@pytest.mark.parametrize("scene", DIFFERENCES)
def test_a_rank_with_another_model_raises_the_same_sentence_on_every_rank(
    seen: list[dict[str, Any]], scene: str
) -> None:
    sentence = (
        "zeno.distributed.step needs the same model and the same arguments on all ranks. "
        f"Found {DIFFERENCES[scene]}. Create the model in the same way on every rank."
    )
    for rank in seen:
        assert rank[scene] == {"raised": [sentence, sentence], "unchanged": True}


def test_ranks_that_had_different_models_can_go_on_with_the_same(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        torch.testing.assert_close(params(rank, "afterwards"), averaged(6))


# Wrong use


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(model: nn.Module) -> tuple[torch.optim.Optimizer, zeno.Server]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return optimizer, zeno.Server(model, F.cross_entropy, optimizer, None, zeno.Mean())


def test_a_missing_process_group_raises() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"needs a process group\. Found none\. Start the script with torchrun"):
        zeno.distributed.step(model, *made(model))


@pytest.mark.usefixtures("alone")
def test_wrong_use_raises_clear_errors() -> None:
    model = net()
    optimizer, server = made(model)
    step = zeno.distributed.step
    with pytest.raises(
        ValueError,
        match=r"^zeno.distributed.step needs a model with gradients\. Found none in Sequential\. Call loss.backward",
    ):
        step(model, optimizer, server)
    backward(model, 0, 0)
    with pytest.raises(ValueError, match=r"needs bucket_bytes of at least 1\. Found 0\."):
        step(model, optimizer, server, bucket_bytes=0)
    with pytest.raises(ValueError, match=r"needs a server on rank 0 and on no other\. Found none on rank 0\. Create"):
        step(model, optimizer)
    with pytest.raises(ValueError, match=r"needs server_rank from 0 to 0\. Found 1\."):
        step(model, optimizer, server, server_rank=1)
    with pytest.raises(ValueError, match=r"needs the model and the optimizer that its server has"):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), server)
    with pytest.raises(ValueError, match=r"needs the model itself\. Found it in DistributedDataParallel"):
        step(nn.parallel.DistributedDataParallel(model), optimizer, server)
    with pytest.raises(ValueError, match=r"needs sent as 210 numbers\. Found shape \[3\]"):
        step(model, optimizer, server, sent=torch.zeros(3))
    assert step(model, optimizer, server) is not None, "a rank alone is its own server"
