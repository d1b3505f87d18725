"""Workers that join while a ledger is kept, and the state of a ledger."""

import numpy as np
import pytest

from zeno.records.ledger import Ledger, ledger_of
from zeno.records.record import Record
from zeno.records.state import state_of, with_state
from zeno.workers.reply import NO_REPLY


def record(step: int, workers: int, joined: list[str], absent: tuple[int, ...] = ()) -> Record:
    """Worker 0 sends nothing; the others score at random."""
    draw = np.random.default_rng(step).normal(size=20)
    scores = [None if i == 0 or i in absent else float(draw[i]) for i in range(workers)]
    kept = [score is not None for score in scores]
    return Record(step, 0.1, kept, scores, errors={0: NO_REPLY}, quarantined=list(absent), joined=joined)


def run(joins_at: int, steps: int = 60) -> Ledger:
    ledger = Ledger(0)
    for step in range(steps):
        joined = list("abcdef") if step == 0 else ["g", "h"] if step == joins_at else []
        ledger.add(record(step, 6 if step < joins_at else 8, joined))
    return ledger


def test_what_is_known_about_the_others_stays_when_workers_join() -> None:
    ledger = run(joins_at=999, steps=30)
    before = ledger.rows
    ledger.join(["g", "h"])
    assert ledger.rows[:6] == before
    assert [(row.name, row.steps, row.quarantined, row.evidence) for row in ledger.rows[6:]] == [
        ("g", 0, 30, 1.0),
        ("h", 0, 30, 1.0),
    ]
    assert ledger.names == list("abcdefgh")


def test_verdicts_are_reached_across_a_join() -> None:
    ledger = run(joins_at=20)
    assert ledger.suspect_names == ["a"]
    assert ledger.rows[0].evidence > ledger.threshold
    assert ledger.rows[0].steps == 60
    assert ledger.rows[7].steps == 40


def test_the_threshold_leaves_half_of_the_error_rate_to_workers_that_join() -> None:
    ledger = Ledger(0)
    ledger.join([str(i) for i in range(6)])
    assert ledger.threshold == pytest.approx(2 * 6 / 0.01)
    ledger.add(record(0, 6, []))
    chances = 6 / ledger.threshold  # of the good workers that are there
    for number in range(6, 300):
        ledger.join([str(number)])
        chances += 1 / ledger.threshold
    assert 0.0095 < chances <= 0.01
    assert Ledger(6).threshold == 600, "without names nobody joins"


def test_a_ledger_continues_from_its_state() -> None:
    whole, half = run(joins_at=20), run(joins_at=20, steps=40)
    later = Ledger.from_state_dict(half.state_dict())
    for step in range(40, 60):
        later.add(record(step, 8, []))
    assert later.rows == whole.rows
    assert str(later.state_dict()) == str(whole.state_dict())


def test_the_state_is_made_of_plain_values() -> None:
    def check(value: object) -> None:
        assert type(value) in (dict, list, str, int, float, bool, type(None)), value
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(part)

    check(run(joins_at=20).state_dict())


def test_the_state_of_something_else_is_refused() -> None:
    state = Ledger(4).state_dict()
    with pytest.raises(ValueError, match="is not that of a Ledger of this version"):
        Ledger.from_state_dict({name: part for name, part in state.items() if name != "steps"})
    with pytest.raises(ValueError, match="is not that of a"):
        Ledger.from_state_dict({**state, "_suspect": [True] * 9})


def test_arrays_grow_in_every_direction_and_keep_their_values() -> None:
    small, large = np.arange(4).reshape(2, 2), np.full((3, 3), 9)
    assert with_state(large, state_of(small)).tolist() == [[0, 1, 9], [2, 3, 9], [9, 9, 9]]


def test_records_of_a_run_with_names_are_enough_for_its_ledger() -> None:
    records = [record(0, 3, ["x", "y", "z"]), record(1, 3, [], absent=(2,)), record(2, 4, ["w"])]
    ledger = ledger_of(records, 0)
    assert [(row.name, row.steps) for row in ledger.rows] == [("x", 3), ("y", 3), ("z", 2), ("w", 1)]


def test_a_record_is_widened_for_workers_that_joined_later() -> None:
    narrow = Record(0, 0.1, [True, False], [1.0, None], weights=[1.0, 0.0], quarantined=[1])
    wide = narrow.widened(4)
    assert (wide.kept, wide.scores, wide.weights) == (
        [True, False, False, False],
        [1.0, None, None, None],
        [1, 0, 0, 0],
    )
    assert wide.quarantined == [1, 2, 3]
    assert narrow.widened(2) is narrow
    skipped = Record(0, 0.1, None, None, skipped="too few")
    assert skipped.widened(4) is skipped
