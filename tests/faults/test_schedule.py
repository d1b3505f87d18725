"""Which workers have which fault at which step."""

from typing import Any

import numpy as np
import pytest

import zeno
from zeno.faults.schedule import Schedule
from zeno.problem.dataset import generator
from zeno.training.settings import from_settings, make_fault


def at(fault: zeno.Fault, step: int, faulty: int = 6, **changed: Any) -> dict[int, zeno.Fault]:
    return Schedule(**{"fault": fault, "faulty": faulty, "workers": 20, "seed": 3, **changed})(step)


def test_a_fault_acts_from_its_start_to_its_end() -> None:
    fault = zeno.Zero(start=2, end=4)
    assert [sorted(at(fault, step)) for step in range(5)] == [[], [], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], []]
    assert at(fault, 2) == dict.fromkeys(range(6), fault)


def test_a_fault_acts_with_its_probability() -> None:
    struck = [sorted(at(zeno.Zero(chance=0.3), step)) for step in range(500)]
    counts = np.bincount([worker for workers in struck for worker in workers])
    assert counts.tolist() == pytest.approx([150] * 6, abs=40)
    assert len({tuple(workers) for workers in struck}) > 20, "each worker for itself"
    assert struck[:9] == [sorted(at(zeno.Zero(chance=0.3), step)) for step in range(9)]
    assert [w for w in range(6) if generator(3, "chance", w, 8).random() < 0.3] == struck[8]


def test_redrawn_workers_depend_on_seed_and_step_only() -> None:
    for step in range(5):
        drawn = sorted(generator(3, "faulty workers", step=step).choice(20, size=6, replace=False).tolist())
        assert sorted(at(zeno.Zero(), step, redraw=True)) == sorted(at(zeno.Zero(redraw=True), step)) == drawn


def test_parts_that_stay_have_the_first_workers_and_the_others_share_a_draw() -> None:
    stay, move = zeno.Zero(on=2), zeno.Crash(redraw=True)
    places = []
    for step in range(200):
        found = at(move + stay + zeno.Hang(on=1) + zeno.Huge(redraw=True, on=2), step, faulty=8)
        by_kind = {kind: [w for w, f in found.items() if type(f) is kind] for kind in map(type, found.values())}
        assert by_kind[zeno.Zero] == [0, 1]
        assert by_kind[zeno.Hang] == [2]
        assert [len(by_kind[kind]) for kind in (zeno.Crash, zeno.Huge)] == [3, 2]
        places += by_kind[zeno.Huge]
    assert set(places) == set(range(3, 20)), "also a part that comes last may have any of them"


@pytest.mark.parametrize(
    ("text", "faulty", "shares"),
    [
        ("zero+crash+hang", 8, [3, 3, 2]),
        ("zero+crash(on=3)+hang", 8, [3, 3, 2]),
        ("zero+crash(on=8)", 8, [0, 8]),
        ("zero(on=3)+crash(on=5)", 8, [3, 5]),
        ("zero+crash", 0, [0, 0]),
        ("zero(on=3)", 3, [3]),
    ],
)
def test_parts_without_a_number_share_the_rest(text: str, faulty: int, shares: list[int]) -> None:
    run = from_settings({"fault": text, "faulty": faulty, "rule": "mean"})
    assert run.faulty_workers().shares() == shares
    assert sorted(run.faulty_workers()(0)) == list(range(faulty))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "zero(on=3)+crash(on=6)",
            "A run with faulty=8 needs faults that take exactly as many workers by `on`. Found 9.",
        ),
        (
            "zero(on=3)+crash(on=4)",
            "A run with faulty=8 needs faults that take exactly as many workers by `on`. Found 7.",
        ),
        ("zero+crash(on=9)", "A run with faulty=8 needs faults that take at most as many workers by `on`. Found 9."),
        ("zero(on=2)", "Set faulty=2, or change `on`."),
    ],
)
def test_a_run_raises_for_parts_that_do_not_add_up(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        from_settings({"fault": text, "faulty": 8, "rule": "mean"})
    assert message in str(raised.value)


def test_faults_are_put_together_in_python_as_on_the_command_line() -> None:
    fault = zeno.LabelFlip(on=8) + zeno.Crash(on=4, start=100) + zeno.Zero()
    assert fault == make_fault("label_flip(on=8)+crash(on=4, start=100)+zero")
    assert fault.parts == (zeno.LabelFlip(on=8), zeno.Crash(on=4, start=100), zeno.Zero())
    assert zeno.Zero() + (zeno.Crash() + zeno.Hang()) == zeno.Zero() + zeno.Crash() + zeno.Hang()
    with pytest.raises(TypeError, match="Only faults can be added"):
        zeno.Zero() + 3  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"Together takes no start. Give it to one of the parts"):
        zeno.Together((zeno.Zero(), zeno.Crash()), start=3)
    with pytest.raises(ValueError, match="needs two or more faults"):
        zeno.Together((zeno.Zero(),))
