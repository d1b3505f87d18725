"""Settings: what is accepted, what raises, and with which message."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import zeno
from zeno.records import toml
from zeno.studies.compare import WITHOUT_FAULTS, runs
from zeno.training.build import make_optimizer
from zeno.training.dry_run import dry_run
from zeno.training.run import Run
from zeno.training.settings import from_settings, key_of, values_in


def test_the_defaults_are_the_papers() -> None:
    run = Run()
    assert (run.workers, run.batch_size, run.lr, run.steps, run.faulty) == (20, 100, 0.1, 5000, 0)
    assert run.rule == zeno.Zeno(trim=4, rho=5e-4, batch_size=4)
    assert run.split == zeno.IID()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workers": 0}, "workers must be at least 1. Found workers=0"),
        ({"faulty": 21}, "faulty must be at most workers=20. Found faulty=21"),
        ({"faulty": -1}, "faulty must be at least 0"),
        ({"rule": "zeno", "trim": 20}, "more than trim candidates. Found 20 with trim=20"),
        ({"rule": "krum(faulty=9)"}, "Found 20 with faulty=9"),
        ({"rule": "mean", "trim": 3}, "The rule 'mean' has no trim. It takes: least"),
        ({"rule": "kum"}, "Unknown rule 'kum'. Did you mean krum?"),
        ({"fault": "flip", "faulty": 1}, "Unknown fault 'flip'"),
        ({"fault": "sign_flip(scale=0)", "faulty": 1}, "scale as a finite number above 0"),
        ({"fault": "sign_flip"}, "Found fault='sign_flip' without faulty. Set faulty too"),
        (
            {"fault": "label_flip(on=30)", "faulty": 0},
            "faulty=0 needs faults that take exactly as many workers by `on`",
        ),
        ({"split": "random"}, "Unknown split 'random'"),
        ({"rule": "zeno", "rho": -1.0}, "rho as a finite number of at least 0"),
        ({"zeno_batch_size": 1}, "samples as a whole number of at least 2. Found samples=1"),
        ({"server_data": 1.0}, "server_data must be at least 0 and below 1"),
        ({"lr": float("nan")}, "lr must be above 0 and below inf. Found lr=nan"),
        ({"precision": "fp8"}, "precision must be one of float32, bf16. Found precision='fp8'"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": "many"}, "The setting steps must be of type int. Found steps='many'"),
        ({"steps": True}, "The setting steps must be of type int. Found steps=True"),
        ({"redraw": 1}, "The setting redraw must be of type bool. Found redraw=1"),
        ({"stops": 3}, "Unknown setting 'stops'. Did you mean steps?"),
        ({"optimizer": "sdg"}, "Unknown optimizer 'sdg'. Did you mean sgd?"),
        ({"optimizer": "sgd(lr=1)"}, "Set lr instead"),
        ({"rule": "zeno(rho='high')"}, "needs rho as a finite number"),
        ({"rho": "high"}, "The rule 'zeno_auto' has no rho. It takes: samples, memory, sketch"),
        ({"optimizer": "sgd(momentum='x')"}, "cannot be made"),
        ({"optimizer": "sgd(0.5)"}, "need their names"),
        ({"schedule": "steplr(step_size=0)"}, "A run cannot use"),
        ({"optimizer": "lbfgs"}, "A run cannot use optimizer='lbfgs'"),
        ({"schedule": "steplr"}, "missing a required argument: 'step_size'"),
        ({"schedule": "reducelronplateau"}, "A run cannot use"),
    ],
)
def test_settings_that_cannot_work_raise_before_anything_is_trained(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        dry_run(from_settings(settings))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": zeno.Zeno}, "rule must be a rule, such as zeno.Zeno(trim=4). Found rule=<class"),
        ({"rule": "kum"}, "Unknown rule 'kum'. Did you mean krum?"),
        ({"fault": zeno.LabelFlip(on=30)}, "A run with faulty=0 needs faults that take"),
        ({"fault": zeno.LabelFlip}, "fault must be a fault, such as zeno.LabelFlip()"),
        ({"split": None}, "split must be a split"),
        ({"seed": 1.5}, "The setting seed must be of type int. Found seed=1.5"),
        ({"lr": "fast"}, "The setting lr must be of type float. Found lr='fast'"),
        ({"task": 5}, "The setting task must be of type str. Found task=5"),
        ({"task": object()}, "The setting task must be a name, a zeno.Task or a function that returns one"),
        ({"optimizer": None}, "The setting optimizer must be of type str. Found optimizer=None"),
    ],
)
def test_settings_of_the_wrong_type_raise_in_python_too(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        Run(**settings)
    assert words in str(error.value)


def test_objects_may_be_given_as_text_as_on_the_command_line() -> None:
    run = Run(rule="zeno(trim=3)", fault="zero(on=2)+crash", faulty=3, split="dirichlet(alpha=0.5)")
    assert run.rule == zeno.Zeno(trim=3)
    assert run.fault == zeno.Zero(on=2) + zeno.Crash()
    assert run.split == zeno.Dirichlet(0.5)
    assert run == from_settings(toml.loads(run.to_toml()))
    assert Run(rule="zeno").rule == from_settings({"rule": "zeno"}).rule


def digits() -> zeno.Task:
    return zeno.load_task("digits")


def test_a_task_may_be_a_function_as_on_the_command_line(tmp_path: Path) -> None:
    by_name = f"{__name__}:digits"
    run = Run(task=digits, rule=zeno.Mean(), workers=2, steps=2)
    assert zeno.train(run, tmp_path) == zeno.train(replace(run, task=by_name))
    assert from_settings(toml.loads((tmp_path / "run.toml").read_text())).task == by_name
    assert len(zeno.train(replace(run, task=by_name, steps=3), tmp_path, resume=True)) == 3
    assert Run(task=lambda: digits()).task_name.endswith(".<lambda>>"), "which cannot be imported"
    nothing: Any = lambda: None  # noqa: E731
    with pytest.raises(ValueError, match=r"needs to return a zeno.Task. Found NoneType"):
        zeno.train(replace(run, task=nothing))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, r"weights one of shape \[m\] = \[4\]. Found None."),
        (torch.zeros(1), "Found a Tensor."),
        (zeno.Aggregate(torch.zeros(1, 1), torch.ones(4)), r"Found an update of \(1, 1\) and weights of \(4,\)"),
        (zeno.Aggregate(torch.zeros(1), torch.ones(3)), r"Found an update of \(1,\) and weights of \(3,\)"),
    ],
)
def test_a_rule_that_returns_no_aggregate_raises_before_anything_is_trained(returned: Any, words: str) -> None:
    class ByCall(zeno.Rule):
        def __call__(self, candidates: Any, oracle: Any = None, state: object = None) -> zeno.Aggregate:
            return cast(zeno.Aggregate, returned)

    class ByRows(zeno.Rule):
        def aggregate(self, rows: Any, oracle: Any, state: object) -> zeno.Aggregate:
            return cast(zeno.Aggregate, returned)

    first = zeno.NNM(faulty=1)
    for rule in (ByCall(), ByRows(), zeno.chain(first, ByCall()), zeno.chain(first, ByRows())):
        with pytest.raises(TypeError, match=words) as error:
            zeno.train(Run(rule=rule, workers=4))
        assert "must return a zeno.Aggregate(update, weights)" in str(error.value)


def test_a_device_is_given_as_text() -> None:
    wrong: Any = torch.device("cpu")
    with pytest.raises(ValueError, match="The setting device must be of type str"):
        zeno.ExecutionSettings(device=wrong)


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
    assert from_settings(toml.loads(run.to_toml())) == run


def test_optimizers_and_schedules_are_torchs_own() -> None:
    params = nn.Parameter(torch.ones(3))
    run = Run(lr=0.5, optimizer="sgd(momentum=0.9)", schedule="steplr(step_size=1, gamma=0.1)")
    optimizer, schedule = make_optimizer(run, params)
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


def test_a_comparison_sets_each_rule_to_tolerate_as_many_faulty_workers_as_it_can() -> None:
    compared = runs({}, ["mean", "krum", "trimmed_mean", "zeno", "krum(faulty=2)"])
    assert list(compared) == [
        WITHOUT_FAULTS,
        "mean",
        "krum(faulty=8)",
        "trimmed_mean(trim=9)",
        "zeno(trim=13, batch_size=64)",
        "krum(faulty=2)",
    ]
    assert compared[WITHOUT_FAULTS].faulty == 0
    assert all(run.faulty == 12 for name, run in compared.items() if name != WITHOUT_FAULTS)
    assert runs({"faulty": 19}, ["zeno"])["zeno(trim=19, batch_size=64)"].faulty == 19
    assert "zeno(trim=3, batch_size=8)" in runs({"trim": 3, "zeno_batch_size": 8}, ["zeno"])
    for trim in (20, 25, -3, "some"):
        with pytest.raises(ValueError, match="A comparison needs trim from 0 to workers - 1 = 19"):
            runs({"trim": trim}, ["zeno"])
    assert "zeno(trim=5, batch_size=128)" in runs({"trim": 3}, ["zeno(trim=5, batch_size=128)"])
    assert runs({"trim": 3}, ["zeno_auto"])["zeno_auto"].rule == zeno.ZenoAuto()  # which needs no trim


def test_plain_settings_default_to_zeno_without_tuning() -> None:
    assert from_settings({}).rule == zeno.ZenoAuto()
    assert from_settings({"zeno_batch_size": 32}).rule == zeno.ZenoAuto(samples=32)
    with pytest.raises(ValueError, match=r"has no trim. It takes: samples, memory, sketch"):
        from_settings({"trim": "13"})
    with pytest.raises(ValueError, match=r"Zeno needs trim as a whole number of at least 0. Found trim='auto'"):
        from_settings({"rule": "zeno", "trim": "auto"})
    assert from_settings({"rule": "zeno_auto(memory=0.8)"}).rule == zeno.ZenoAuto(memory=0.8)
    text = from_settings({}).to_toml()
    assert 'rule = "zeno_auto"' in text


def test_a_rule_that_asks_for_the_servers_own_gradient_can_be_tried() -> None:
    class FirstOrder(zeno.Rule):
        def __call__(self, candidates: torch.Tensor, oracle: Any = None, state: object = None) -> zeno.Aggregate:
            scores = oracle.lr * candidates @ oracle.gradient() + oracle.descents(candidates)
            return zeno.Aggregate(candidates[0], torch.ones(len(candidates)), scores)

    dry_run(Run(rule=FirstOrder(), workers=3))


WITHOUT_TORCH = """
import sys, types
for name in ("zeno", "zeno.problem"):
    package = types.ModuleType(name)
    package.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
    sys.modules[name] = package
from zeno.training.execution import ExecutionSettings
from zeno.training.run import check_values
ExecutionSettings(cluster="ray", deadline=3.0)
check_values({"rule": "zeno", "trim": 3, "faulty": 20})
try:
    check_values({"faulty": 30, "workers": 20})
except ValueError as error:
    print(error, "torch" in sys.modules)
"""


def test_plain_values_are_checked_without_torch() -> None:
    source = zeno.__file__.removesuffix("/zeno/__init__.py")
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, source], capture_output=True, text=True, check=True)
    assert done.stdout == "The setting faulty must be at most workers=20. Found faulty=30. False\n"


def test_a_run_is_identified_by_the_values_of_its_settings() -> None:
    run = Run(lr=1, rule=zeno.Zeno(trim=2), fault=zeno.SignFlip(), faulty=2, data="here")
    key = key_of(run.to_toml())
    assert key == 'rule = "zeno(trim=2)"\nfault = "sign_flip"\nfaulty = 2\nlr = 1.0\n'
    assert key_of(replace(run, lr=1.0, data=None).to_toml()) == key
    assert key_of('rule="zeno( 2, rho=5e-4 )"\nfault="sign_flip()"\nfaulty=2\nlr=1') == key, "in any notation"
    assert key_of(replace(run, seed=1).to_toml()) != key
    assert key_of(Run().to_toml()) == key_of("") == ""
    assert key_of("another = 3\n") == "another = 3\n", "a setting of a newer version"


def test_objects_of_a_users_class_compare_by_class_and_plain_fields() -> None:
    @dataclass(frozen=True)
    class Scaled(zeno.Rule):
        factor: float = 1.0

        def __call__(
            self, candidates: torch.Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            return zeno.Mean()(candidates)

    class Plain(Scaled):
        def __init__(self) -> None:
            object.__setattr__(self, "factor", torch.ones(1))

    def value(rule: Any) -> str:
        return str(values_in(Run(rule=rule).to_toml())["rule"])

    assert value(Scaled(2.0)) == value(Scaled(2.0)) != value(Scaled(3.0))
    assert value(Plain()) == value(Plain())
    assert value(zeno.chain(zeno.NNM(faulty=2), Plain())).startswith("nnm(faulty=2)+<")
    assert "0x" not in value(Plain())
