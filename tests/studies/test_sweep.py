"""The runner of all studies: what it trains, keeps, resumes and reports."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import zeno
from zeno.records.record import Record
from zeno.studies.processes import Failed
from zeno.studies.sweep import Job, Outcome, OutcomeFile, missing, run_jobs, sweep, train_job

RUN = zeno.Run(workers=3, steps=4, eval_every=2, batch_size=8, rule=zeno.Mean())
SETTINGS = ("study.toml", "steps = 4\n")


def jobs(*seeds: int, folder: Path | None = None) -> list[Job]:
    return [Job(f"seed {k}", replace(RUN, seed=k), None if folder is None else folder / str(k)) for k in seeds]


def test_in_this_process_and_in_others_the_records_and_outcomes_are_the_same(tmp_path: Path) -> None:
    seen: dict[str, list[Record]] = {}

    def on_record(job: Job, record: Record) -> None:
        seen.setdefault(job.name, []).append(record)

    here = {job.name: records for job, records in run_jobs(jobs(0, 1), train_job, on_record=on_record)}
    assert seen == here
    seen.clear()
    outcomes = sweep(jobs(0, 1), OutcomeFile(tmp_path / "runs.jsonl"), SETTINGS, processes=1, on_record=on_record)
    assert seen == here
    for job in jobs(0, 1):
        records, found = here[job.name], outcomes[job.key]
        assert not isinstance(records, Failed)
        assert isinstance(found, Outcome)
        found, again = (replace(one, seconds=None, elapsed=None) for one in (found, Outcome.of(records)))
        assert found == again
    assert (tmp_path / "study.toml").read_text() == SETTINGS[1]
    assert OutcomeFile(tmp_path / "runs.jsonl").read() == outcomes


def test_an_outcome_has_the_seconds_of_training_up_to_each_evaluation() -> None:
    records = [
        Record(step, 0.1, None, None, evaluated=step in (1, 3), seconds={"gradients": 2.0**step, "rule": 0.5})
        for step in range(4)
    ]
    assert Outcome.of(records).elapsed == [4.0, 17.0]


def test_an_error_in_this_process_is_raised() -> None:
    wrong = Job("wrong", replace(RUN, task="no.such:task"))
    with pytest.raises(ValueError, match=r"no\.such:task"):
        list(run_jobs([*jobs(0), wrong], train_job))


def test_ctrl_c_ends_the_jobs_in_this_process_after_a_step_and_a_folder_is_resumed(tmp_path: Path) -> None:
    def stop(job: Job, record: Record) -> None:
        if job.name == "seed 1" and record.step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    running = run_jobs(jobs(0, 1, 2, folder=tmp_path), train_job, on_record=stop)
    assert next(running)[0].name == "seed 0"
    with pytest.raises(KeyboardInterrupt):
        next(running)
    steps: list[int] = []
    first, second = (
        r for _, r in run_jobs(jobs(1, 2, folder=tmp_path), train_job, 0, lambda j, r: steps.append(r.step))
    )
    assert steps == [2, 3, 0, 1, 2, 3]
    assert [first, second] == [zeno.train(replace(RUN, seed=seed)) for seed in (1, 2)]


def lines(path: Path, edit: Callable[[str], str]) -> None:
    path.write_text(edit(path.read_text()))


def test_missing_are_the_jobs_without_an_outcome_and_those_that_failed(tmp_path: Path) -> None:
    file = OutcomeFile(tmp_path / "runs.jsonl")
    records = zeno.train(RUN)
    file.append(RUN, Outcome.of(records))
    file.append(replace(RUN, seed=1, data="/elsewhere"), Failed("died: killed by SIGKILL"))
    lines(file.path, lambda text: text + text[:30])
    every = [*jobs(0, 1, 2), *jobs(2)]
    assert [job.name for job in missing(every, file.read())] == ["seed 1", "seed 2"]
    assert "elsewhere" not in file.path.read_text()
    file.mend()
    assert file.path.read_text().count("\n") == 2
    file.append(replace(RUN, seed=1), Outcome.of(records))  # the newest counts
    assert [job.name for job in missing(every, file.read())] == ["seed 2"]


def test_cells_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    old = {"run": RUN.to_toml(), "accuracy": 0.5, "train_loss": None, "diverged": True, "faulty_kept": 0.1}
    (tmp_path / "cells.jsonl").write_text(json.dumps({**old, "skipped": 2, "seconds": 1.0, "error": None}) + "\n")
    (found,) = OutcomeFile(tmp_path / "cells.jsonl").read().values()
    assert isinstance(found, Outcome)
    assert (found.accuracy, found.train_loss, found.faulty_kept, found.skipped) == ([0.5], [None], 0.1, 2)
