"""The line that a command shows while it trains."""

from pathlib import Path
from typing import Any

import pytest

import zeno
from zeno.cli.progress import Pace, TrainingProgress
from zeno.records.record import Record
from zeno.studies.sweep import Job


def test_an_asynchronous_run_shows_updates_per_second_acceptance_and_staleness() -> None:
    seconds = iter([0.0, 0.5, 1.0, 2.0])
    pace = Pace(clock=lambda: next(seconds))
    arrivals = [[[0, 0]], [[1, 0]], [[0, 1]], [[2, 0]]]  # staleness 0, 1, 1 and 3
    kept = [[True, False, False], [False] * 3, [True, False, False], None]
    texts = [pace.add(Record(step, 0.1, kept[step], None, arrivals=arrived)) for step, arrived in enumerate(arrivals)]
    assert texts[0] == "0.0 updates/s, 100% accepted, staleness 0.0"
    assert texts[2] == "2.0 updates/s, 67% accepted, staleness 0.7"
    assert texts[3] == "1.5 updates/s, 50% accepted, staleness 1.2"


def test_the_pace_is_that_of_recent_updates() -> None:
    seconds = iter([0.0, *(1000.0 + step for step in range(Pace.RECENT + 5))])
    pace = Pace(clock=lambda: next(seconds))
    for step in range(Pace.RECENT + 5):
        text = pace.add(Record(step, 0.1, [True], None, arrivals=[[0, step]]))
    assert text == "1.0 updates/s, 100% accepted, staleness 0.0"


def test_after_an_error_the_command_says_how_to_continue_once_it_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("zeno", zeno.Run(steps=4), Path("runs/example"), zeno.ExecutionSettings())
    progress = TrainingProgress({"zeno": [job]})
    progress.on_record(job, Record(0, 0.1, [True], None))
    with pytest.raises(OSError, match="full"), progress:
        raise OSError("the disk is full")
    assert capsys.readouterr().err.endswith(
        "stopped by an error; once it is solved: zeno train --resume runs/example\n"
    )


@pytest.mark.parametrize(
    ("cluster", "arrivals", "shown"),
    [
        ("ray", None, "3 alive, 1 late"),
        ("ray", [[0, 0]], "0.0 updates/s, 100% accepted, staleness 0.0, 3 alive, 1 late"),
        ("local", [[0, 0]], "0.0 updates/s, 100% accepted, staleness 0.0"),
        ("local", None, ""),
    ],
)
def test_the_line_of_a_run_on_ray_shows_how_many_workers_are_there(cluster: str, arrivals: Any, shown: str) -> None:
    job = Job("mean", zeno.Run(steps=2), None, zeno.ExecutionSettings(cluster=cluster))
    progress = TrainingProgress({"mean": [job]})
    counts = {"alive": 3, "late": 1, "lost": 0}
    progress.on_record(job, Record(0, 0.1, [True], None, arrivals=arrivals, workers=counts))
    assert progress._progress.tasks[0].fields["workers"] == shown
