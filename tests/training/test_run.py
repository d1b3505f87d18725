"""Settings: what is accepted, what is refused, and with which words."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

import zeno
from zeno.studies.compare import WITHOUT_FAULTS, runs
from zeno.training.run import Run, from_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_defaults_are_the_papers() -> None:
    run = Run()
    assert (run.workers, run.batch_size, run.lr, run.steps, run.faulty) == (20, 100, 0.1, 5000, 0)
    assert run.rule == zeno.Zeno(trim=4, rho=5e-4, batch_size=4)
    assert run.split == zeno.IID()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers of at least 1. Found workers=0"),
        ({"faulty": 21}, "faulty of at most workers=20. Found faulty=21"),
        ({"faulty": -1}, "faulty of at least 0"),
        ({"trim": 20}, "more than trim candidates. Found 20 with trim=20"),
        ({"rule": "krum(faulty=9)"}, "Found 20 with faulty=9"),
        ({"rule": "mean", "trim": 3}, "The rule 'mean' has no trim. It takes: nothing"),
        ({"rule": "kum"}, "Unknown rule 'kum'. Did you mean krum?"),
        ({"fault": "flip"}, "Unknown fault 'flip'"),
        ({"fault": "sign_flip(scale=0)"}, "scale as a finite number above 0"),
        ({"split": "random"}, "Unknown split 'random'"),
        ({"rho": -1.0}, "rho as 'auto' or a finite number of at least 0"),
        ({"zeno_batch_size": 0}, "batch_size as a whole number of at least 1"),
        ({"server_data": 1.0}, "server_data of at least 0 and below 1"),
        ({"lr": float("nan")}, "lr that is finite and above 0"),
        ({"precision": "fp8"}, "precision as one of float32, bf16. Found precision='fp8'"),
        ({"steps": 0}, "steps of at least 1"),
        ({"steps": "many"}, "The setting steps does not take a str. Found steps='many'"),
        ({"steps": True}, "The setting steps does not take a bool"),
        ({"redraw": 1}, "The setting redraw does not take a int"),
        ({"stops": 3}, "Unknown setting 'stops'. Did you mean steps?"),
        ({"optimizer": "sdg"}, "Unknown optimizer 'sdg'. Did you mean sgd?"),
        ({"optimizer": "sgd(lr=1)"}, "Set lr instead"),
        ({"rule": "zeno(rho='high')"}, "needs rho as 'auto' or a finite number"),
        ({"rho": "high"}, "needs rho as 'auto' or a finite number"),
        ({"optimizer": "sgd(momentum='x')"}, "cannot be made"),
        ({"optimizer": "sgd(0.5)"}, "need their names"),
        ({"schedule": "steplr(step_size=0)"}, "A run cannot use"),
        ({"optimizer": "lbfgs"}, "A run cannot use optimizer='lbfgs'"),
        ({"schedule": "steplr"}, "missing a required argument: 'step_size'"),
        ({"schedule": "reducelronplateau"}, "A run cannot use"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        from_settings(settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "zeno"}, "rule as a rule, such as zeno.Zeno(trim=4). Found rule='zeno'"),
        ({"fault": zeno.LabelFlip}, "fault as a fault, such as zeno.LabelFlip()"),
        ({"split": None}, "split as a split"),
        ({"seed": 1.5}, "The setting seed does not take a float"),
        ({"lr": "fast"}, "The setting lr does not take a str"),
    ],
)
def test_python_users_get_the_same_care(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        Run(**settings)
    assert words in str(error.value)


def test_flags_of_the_rule_win_over_its_text() -> None:
    assert from_settings({"rule": "zeno(trim=2, rho=1.0)", "trim": 3}).rule == zeno.Zeno(trim=3, rho=1.0)
    assert from_settings({"rule": "krum", "trim": 3}).rule == zeno.Krum(faulty=3)
    assert from_settings({"rule": "trimmed_mean"}).rule == zeno.TrimmedMean(trim=4)


def test_toml_gives_the_same_run_back() -> None:
    run = Run(
        task="mnist",
        data='a "quoted" \\ path 😀',
        rule=zeno.Zeno(trim=13, batch_size=32),
        fault=zeno.SignFlip(10.0),
        faulty=12,
        redraw=True,
        split=zeno.Dirichlet(0.3),
        optimizer="sgd(momentum=0.9)",
        schedule="steplr(step_size=10)",
        server_data=0.05,
        precision="bf16",
        steps=7,
    )
    assert from_settings(tomllib.loads(run.to_toml())) == run


def test_optimizers_and_schedules_are_torchs_own() -> None:
    params = nn.Parameter(torch.ones(3))
    optimizer, schedule = Run(
        lr=0.5, optimizer="sgd(momentum=0.9)", schedule="steplr(step_size=1, gamma=0.1)"
    ).make_optimizer(params)
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9
    assert schedule is not None
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_fixed_faulty_workers_stay_and_redrawn_ones_move_in_the_given_number() -> None:
    fixed = Run(faulty=3, rule=zeno.Mean()).faulty_workers()
    assert fixed(0) == fixed(7) == dict.fromkeys([0, 1, 2], zeno.LabelFlip())
    redrawn = Run(faulty=12, redraw=True, rule=zeno.Mean()).faulty_workers()
    drawn = [tuple(redrawn(step)) for step in range(50)]
    assert all(len(set(workers)) == 12 for workers in drawn)
    assert len(set(drawn)) > 40
    assert {worker for workers in drawn for worker in workers} == set(range(20))
    assert redrawn(3) == redrawn(3)
    assert sorted(Run(faulty=20, redraw=True, rule=zeno.Mean()).faulty_workers()(0)) == list(range(20))


def test_a_comparison_tells_each_rule_of_as_many_faulty_workers_as_it_bears() -> None:
    compared = runs({}, ["mean", "krum", "trimmed_mean", "zeno", "krum(faulty=2)"])
    assert list(compared) == [
        WITHOUT_FAULTS,
        "mean",
        "krum(faulty=8)",
        "trimmed_mean(trim=9)",
        "zeno(trim=13, batch_size=32)",
        "krum(faulty=2)",
    ]
    assert compared[WITHOUT_FAULTS].faulty == 0
    assert all(run.faulty == 12 for name, run in compared.items() if name != WITHOUT_FAULTS)
    assert runs({"faulty": 19}, ["zeno"])["zeno(trim=19, batch_size=32)"].faulty == 19
    assert "zeno(trim=3, batch_size=8)" in runs({"trim": 3, "zeno_batch_size": 8}, ["zeno"])
    for trim in (20, 25, -3, "some"):
        with pytest.raises(ValueError, match="A comparison needs trim from 0 to workers - 1 = 19"):
            runs({"trim": trim}, ["zeno"])
    assert "zeno(trim=5, batch_size=128)" in runs({"trim": 3}, ["zeno(trim=5, batch_size=128)"])
    assert runs({"trim": 3}, ["zeno_auto"])["zeno_auto"].rule == zeno.Zeno.auto()  # which is told nothing


def test_the_command_line_leaves_to_zeno_what_nobody_says() -> None:
    assert from_settings({}).rule == zeno.Zeno.auto()
    assert from_settings({"trim": "13", "rho": "5e-4"}).rule == zeno.Zeno.auto(trim=13, rho=5e-4)
    assert from_settings({"rule": "zeno", "trim": "auto"}).rule == zeno.Zeno(trim="auto")
    assert from_settings({"rule": "zeno_auto(memory=0.9)"}).rule == zeno.Zeno.auto(memory=0.9)
    text = from_settings({}).to_toml()
    assert "zeno(trim='auto', rho='auto', batch_size='auto', memory=0.97, warm_up=20)" in text


def test_a_rule_that_asks_for_the_servers_own_gradient_can_be_tried() -> None:
    class FirstOrder:
        def __call__(self, candidates: torch.Tensor, descent: Any = None, state: object = None) -> zeno.Aggregate:
            scores = descent.lr * candidates @ descent.gradient() + descent(candidates)
            return zeno.Aggregate(candidates[0], scores, torch.ones(len(candidates), dtype=torch.bool))

    assert Run(rule=FirstOrder(), workers=3).workers == 3
