"""`zeno.distributed.Guard` with four real processes on loopback, and what it says when it is used wrongly."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import zeno
from support.guarded import FAULTS, FROM, RANKS
from support.processes import seen_by_ranks
from zeno.records.folder import Journal, read
from zeno.server.distributed.drift import checksum

SCRIPT = Path(__file__).parent.parent / "support" / "guarded.py"
NOISE = 0.02  # of an accuracy on 360 pictures; docs/ddp.md has means over seeds
OVERLAPPED = ("flipped labels", "bits of gradients", "NaN", "reversed")
ZENO = "from zeno.cli import main; main()"
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def seen(folder: Path) -> Seen:
    """What each rank saw, by scene."""
    return seen_by_ranks(SCRIPT, folder, RANKS, timeout=300)


def named(seen: Seen, scene: str) -> list[dict[str, int]]:
    return [rank[scene]["named"] for rank in seen]


def mean_weights(seen: Seen, scene: str) -> list[float]:
    return torch.tensor(seen[0][scene]["weights"]).mean(dim=0).tolist()


@pytest.mark.parametrize("scene", ["no fault", "overlapped: no fault"])
def test_without_faults_it_trains_as_ddp_does(seen: Seen, scene: str) -> None:
    assert seen[0][scene]["accuracy"] == pytest.approx(seen[0]["DDP"]["accuracy"], abs=0.01)
    assert mean_weights(seen, scene) == pytest.approx([0.25] * RANKS, abs=0.06)
    assert sum(seen[0][scene]["own"]) / 100 < 0.06
    assert named(seen, scene) == [{}] * RANKS
    assert len({rank[scene]["params"] for rank in seen}) == 1, "to the last bit"


def test_a_model_that_learns_its_data_by_heart_does_not_make_ranks_suspect(seen: Seen) -> None:
    assert seen[0]["by heart"]["accuracy"] == pytest.approx(seen[0]["by heart, DDP"]["accuracy"], abs=0.01)
    assert named(seen, "by heart") == [{}] * RANKS
    assert mean_weights(seen, "by heart") == pytest.approx([0.25] * RANKS, abs=0.02)


@pytest.mark.parametrize("scene", [*FAULTS, *(f"overlapped: {name}" for name in OVERLAPPED)])
def test_a_faulty_rank_does_no_harm_and_is_named(seen: Seen, scene: str) -> None:
    without = seen[0]["DDP without 1"]["accuracy"]
    for rank in seen[:3]:
        assert rank[scene]["accuracy"] > without - NOISE
        assert list(rank[scene]["named"]) == ["3"]
    assert len({json.dumps(rank[scene]["named"]) for rank in seen}) == 1, "all ranks have the same ledger"
    assert seen[0][scene]["labels"] == ["0 on gpu-0", "1 on gpu-0", "2 on gpu-1", "3 on gpu-1"]
    assert len({rank[scene]["params"] for rank in seen[:3]}) == 1


def test_one_good_rank_and_trusted_samples_are_enough(seen: Seen) -> None:
    scene = seen[0]["three of four"]
    assert scene["accuracy"] > seen[0]["DDP without 3"]["accuracy"] - NOISE
    assert sorted(scene["named"]) == ["1", "2", "3"]


def test_plain_ddp_is_harmed(seen: Seen) -> None:
    assert seen[0]["DDP, flipped labels"]["accuracy"] < seen[0]["DDP without 1"]["accuracy"] - 0.01


def test_without_acting_the_all_reduce_stays_what_it_was(seen: Seen, folder: Path) -> None:
    for rank in seen:
        assert rank["watched"]["params"] == rank["DDP, flipped labels"]["params"]
        assert list(rank["watched"]["named"]) == ["3"]
    assert seen[0]["watched"]["weights"] == [[0.25] * RANKS] * 100
    run = folder / "watched"
    told = subprocess.run([sys.executable, "-c", ZENO, "suspects", str(run)], capture_output=True, text=True)
    assert "1 of 4 workers is suspect: 3 on gpu-1." in told.stdout, told.stderr


def test_a_rank_whose_parameters_drifted_is_named_and_set_right(seen: Seen) -> None:
    for rank in seen:
        assert rank["missed update"]["errors"]["2"] == {"drifted": 1}
        assert all(rank["missed update"]["errors"][other] == {} for other in "013")
    assert len({rank["missed update"]["params"] for rank in seen}) == 1
    assert seen[0]["bits of parameters"]["named"]["3"] > FROM
    assert seen[0]["bits of parameters"]["errors"]["3"]["drifted"] >= 5


def test_without_acting_parameters_that_drifted_are_noted_and_stay(seen: Seen) -> None:
    scene = "missed update, watched"
    for rank in seen:
        assert rank[scene]["errors"]["2"] == {"drifted": 3}, "at steps 79, 99 and 119"
    assert len({rank[scene]["params"] for rank in seen}) == 2
    assert seen[2][scene]["params"] != seen[0][scene]["params"]


@pytest.mark.parametrize("scene", ["what people do", "what people do, overlapped"])
def test_it_works_with_what_people_do_around_a_step(seen: Seen, scene: str) -> None:
    assert len({rank[scene]["params"] for rank in seen}) == 1
    assert seen[0][scene]["steps"] == 40, "no_sync does not count"
    assert seen[0][scene]["accuracy"] == pytest.approx(seen[0]["what people do, DDP"]["accuracy"], abs=0.02)
    assert seen[0][scene]["suspects"] == []


@pytest.mark.parametrize("scene", ["scale too high", "scale too high, overlapped"])
def test_a_loss_scale_that_is_too_high_skips_steps_on_all_ranks_and_blames_nobody(seen: Seen, scene: str) -> None:
    for rank in seen:
        found = rank[scene]
        assert found["scales"] == seen[0][scene]["scales"]
        assert found["scales"][0] == 2.0**126
        assert found["scales"][-1] == found["scales"][20]
        assert found["skipped"][0] is not None
        assert found["skipped"][-1] is None
        assert not any(found["errors"])
    assert len({rank[scene]["params"] for rank in seen}) == 1


def test_inf_at_a_scale_that_was_fine_before_is_the_fault_of_that_rank(seen: Seen) -> None:
    for rank in seen:
        found = rank["Inf on one rank"]
        assert found["scales"] == [2.0**4] * 40
        assert [step for step, errors in enumerate(found["errors"]) if errors] == [25, 26]
        assert found["errors"][25] == {"2": "not finite"}
    assert len({rank["Inf on one rank"]["params"] for rank in seen}) == 1


def test_a_job_that_is_started_again_continues(seen: Seen, folder: Path) -> None:
    for rank in seen:
        at_once, in_parts = rank["resumed"]["at once"], rank["resumed"]["in parts"]
        assert at_once["steps"] == in_parts["steps"] == 120
        assert at_once["suspects"] == in_parts["suspects"] == [3]
        # DDP adds up in another order at the first step, before it rebuilds its buckets.
        assert in_parts["some"] == pytest.approx(at_once["some"], rel=1e-2, abs=1e-4)
        assert in_parts["evidence"] == pytest.approx(at_once["evidence"], rel=0.1)
    assert [record.step for record in read(folder / "resumed")] == list(range(120))


def test_ranks_that_do_not_fit_together_raise_the_same_sentence(seen: Seen) -> None:
    own = "zeno.distributed.Guard"
    needs = f"{own} needs samples that are trusted on one rank. Found"
    for rank in seen:
        found = rank["differing"]
        assert found["no data"].startswith(f"{needs} none. Pass `data if rank == 0")
        assert found["data on two"].startswith(f"{needs} them on ranks 0, 1.")
        assert "every=2, compare_every=20 on rank 1, " in found["other settings"]
        assert found["another hook"].startswith(f"{own} is the communication hook of its model")
        assert found["SyncBatchNorm"].startswith(f"{own} cannot protect SyncBatchNorm")
        assert "Found DDP's join()" in found["joined"]


# In this process


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1)
    yield
    time.sleep(0.3)  # gloo's threads need the interpreter to finish, and the end of the group does not give it to them
    dist.destroy_process_group()


DATA = [(torch.randn(64, 3), torch.randint(2, (64,)))]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": nn.Linear(3, 2)}, r"needs a model in DistributedDataParallel\. Found Linear\. Pass Dist"),
        ({"model": type("FSDPLinear", (nn.Linear,), {})(3, 2)}, r"Found FSDPLinear\. A Guard does not support it"),
        ({"rule": zeno.Mean()}, r"needs a rule that judges by sketches, zeno.ZenoAuto\. Found Mean"),
        ({"every": 0}, r"needs every of at least 1 and compare_every of at least 0\. Found 0 and 20"),
        ({"scale": 0.0}, r"needs scale as a number above 0 or a torch.amp.GradScaler\. Found 0.0"),
        ({"loss": 3}, r"needs loss as a function"),
    ],
)
def test_wrong_use_raises_clear_errors(change: dict[str, Any], expected: str) -> None:
    arguments: dict[str, Any] = {"loss": F.cross_entropy, "data": DATA, **change}
    model = arguments.pop("model", None) or nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=expected):
        zeno.distributed.Guard(model, arguments.pop("loss"), arguments.pop("data"), **arguments)


@pytest.mark.usefixtures("alone")
def test_a_disk_that_is_full_ends_the_records_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    guard = zeno.distributed.Guard(model, F.cross_entropy, DATA, folder=tmp_path / "run")
    with pytest.raises(ValueError, match="has a ledger from the first backward on"):
        _ = guard.ledger
    F.cross_entropy(model(DATA[0][0]), DATA[0][1]).backward()

    append, calls = Journal.append, []

    def full(self: Journal, record: zeno.Record) -> None:
        calls.append(record)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        append(self, record)

    monkeypatch.setattr(Journal, "append", full)
    with pytest.warns(UserWarning, match=r"The records of the Guard end at step 1: .*No space left"):
        F.cross_entropy(model(DATA[0][0]), DATA[0][1]).backward()
    assert guard.ledger.steps == guard.steps == 2


@pytest.mark.usefixtures("alone")
def test_the_update_is_the_mixture_of_the_gradient_and_the_own_gradient() -> None:
    inner = nn.Linear(3, 2)
    model = nn.parallel.DistributedDataParallel(inner)
    guard = zeno.distributed.Guard(model, F.cross_entropy, DATA, zeno.ZenoAuto(samples=64), scale=8.0)
    inputs, targets = torch.randn(40, 3), torch.randint(2, (40,))
    (8 * F.cross_entropy(model(inputs), targets)).backward()
    assert inner.weight.grad is not None
    assert guard.record is not None
    assert guard.record.weights is not None
    twin = nn.Linear(3, 2)
    twin.load_state_dict(inner.state_dict())
    F.cross_entropy(twin(inputs), targets).backward()
    gradient = zeno.flatten(twin)
    share = 8 * guard.record.weights[0] * gradient
    rest = zeno.flatten(inner) - share
    own = guard._own_gradients
    assert own.shape == (2, 8)
    second = float(own[0].square().sum() / own.square().sum())  # the half with more noise is longer
    expected = 8 * guard.record.own * torch.lerp(own[0], own[1], guard.record.own * second)
    torch.testing.assert_close(rest, expected, atol=2e-3, rtol=1e-3)  # weights of records have four digits
    assert guard.record.own + guard.record.weights[0] == pytest.approx(1, abs=1e-3)


@pytest.mark.usefixtures("alone")
def test_an_own_gradient_that_is_not_finite_changes_nothing() -> None:
    inner = nn.Linear(3, 2)
    model = nn.parallel.DistributedDataParallel(inner)
    guard = zeno.distributed.Guard(model, lambda outputs, targets: outputs.sum() * torch.nan, DATA, every=1)
    inputs, targets = torch.randn(40, 3), torch.randint(2, (40,))
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        twin = nn.Linear(3, 2)
        twin.load_state_dict(inner.state_dict())
        F.cross_entropy(twin(inputs), targets).backward()
        torch.testing.assert_close(zeno.flatten(inner), zeno.flatten(twin))
    assert guard.record is not None
    assert guard.record.cosines == [None]


def test_a_checksum_changes_with_every_bit() -> None:
    for count in (1, 3, 8, 9):
        tensor = torch.randn(count + 1)[1:]  # not aligned to words
        before = checksum([tensor])
        assert checksum([tensor.clone()]) == before
        for at in range(count):
            for bit in range(32):
                changed = tensor.clone()
                changed.view(torch.int32)[at] ^= torch.tensor(1).bitwise_left_shift(torch.tensor(bit)).to(torch.int32)
                assert checksum([changed]) != before
