"""The figures of the plan, by hand, and the property that it rests on: sketches of shards add up."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.scale import LAYOUTS, Host, Plan, readable, table
from zeno.rules.linalg.sketch import Sketch, sketch

SMALL = Plan(workers=3, parameters=10, shards=4, dtype="bfloat16", sketch=2, optimizer_states=1, in_flight=2)


def by_name(layout: str, plan: Plan = SMALL) -> dict[str, Host]:
    return {host.name: host for host in plan.hosts(layout)}


def test_one_server_by_hand() -> None:
    server = by_name("one server")["server"]
    # Sketches: (3 + 2) * 2 * 4 = 40. Judging: 40 + 2 * (3 + 3) * 2 * 8 + 6 * 6 * 8 = 520.
    # Candidates: 3 * 10 * 2 = 60. Parameters, momentum, update: 10 * 4 * 3 = 120. Two gradients: 80.
    assert server.memory == 60 + 120 + 80 + 520
    assert (server.sent, server.received) == (60, 60)


def test_shards_by_hand() -> None:
    hosts = by_name("shards")
    assert SMALL.slice == 3  # the largest of 3, 3, 3, 1
    # Candidates: 3 * 3 * 2 = 18. State: 3 * 4 * 3 = 36. Two gradients: 3 * 4 * 2 = 24. Sketches: 40.
    assert hosts["shard"] == Host("shard", 4, 18 + 36 + 24 + 40, 18 + 6 + 40, 18 + 24 + 40 + 4 * 8)
    assert hosts["coordinator"] == Host("coordinator", 1, 520, 4 * 8 * 4, 40)
    assert hosts["judge"] == Host("judge", 1, 40 + 80, 80, 20)
    assert hosts["worker"] == Host("worker", 3, 40 + 20, 20, 20)


def test_a_streaming_shard_holds_only_what_is_in_flight() -> None:
    held, streaming = by_name("shards")["shard"], by_name("streaming shards")["shard"]
    assert held.memory - streaming.memory == (3 - 2) * 3 * 2
    assert (held.sent, held.received) == (streaming.sent, streaming.received)


def test_a_guard_sends_as_much_as_ddp_and_the_sketches() -> None:
    ranks = by_name("guard")
    # A ring: 2 * 20 bytes * 2 / 3 = 26. Sketches: 2 * 4 bytes to each of 2 others.
    assert ranks["rank"].sent == 26 + 16
    assert ranks["rank with samples"].memory - ranks["rank"].memory == 80
    assert sum(rank.count for rank in ranks.values()) == 3


def test_what_is_sent_and_what_is_received_agree() -> None:
    plan = Plan(workers=1000, parameters=10**9, shards=250)
    hosts = by_name("shards", plan)
    to_workers = hosts["shard"].sent - plan.width * plan.slice - plan.sketches
    assert to_workers * 250 == hosts["worker"].received * 1000
    weights = plan.hosts("shards")[1].sent
    halves = 2 * 4 * plan.slice
    assert weights == 250 * (hosts["shard"].received - 1000 * plan.width * plan.slice - halves - plan.sketches)


def test_the_plan_of_the_page() -> None:
    plan = Plan(workers=1000, parameters=10**9, shards=250)
    page = (Path(__file__).parent.parent.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    assert table(plan, 100) in page


def test_seconds_are_those_of_the_busier_direction() -> None:
    assert Host("any", 1, 0, sent=25 * 10**8, received=10**8).seconds(gigabits=10) == 2.0


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12 MB"), (2 * 10**12, "2.0 TB")]
)
def test_readable(count: int, text: str) -> None:
    assert readable(count) == text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 0}, "at least one of workers"),
        ({"shards": 11}, "11 shards of 10 parameters"),
        ({"dtype": "int8"}, "float32"),
        ({"optimizer_states": -1}, "negative"),
    ],
)
def test_plans_that_make_no_sense_raise(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan(**{"workers": 3, "parameters": 10, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=LAYOUTS[0]):
        SMALL.hosts("round table")


def test_the_command_prints_every_layout() -> None:
    command = [sys.executable, "-m", "benchmarks.scale", "--parameters", "1e6", "--shards", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(f"| {layout} |" in done.stdout for layout in LAYOUTS)
    done = subprocess.run([*command, "--workers", "0"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "at least one of workers" in done.stderr


def test_sketches_of_shards_add_up_to_the_sketch_of_the_whole() -> None:
    m, d, k, seed = 5, 300_000, 1024, 7
    candidates = torch.randn(m, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(m, k, dtype=torch.float64)
    for start, stop in ((170_001, d), (0, 131_000), (131_000, 170_001)):  # in any order, at any boundary
        shard = Sketch(m, k, seed, candidates)
        shard.add(candidates[:, start:stop], start)
        total += shard.sums()
    torch.testing.assert_close(total, sketch(candidates, k, seed), rtol=0, atol=1e-9)
