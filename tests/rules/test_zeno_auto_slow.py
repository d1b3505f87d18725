"""One good worker of twenty, and nobody says so: what `zeno_auto` has to hold, over several seeds."""

import pytest

import zeno
from zeno.training.settings import from_settings

FAULTS = ("label_flip", "sign_flip(10)", "zero", "random_bits", "inner_product", "huge", "garbage")
SEEDS = range(3)


def accuracy(rule: str, fault: str, faulty: int, seed: int) -> float:
    settings = {"rule": rule, "fault": fault, "faulty": faulty, "seed": seed, "steps": 200, "eval_every": 200}
    found = zeno.summarize(zeno.train(from_settings(settings))).accuracy
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_nineteen_faulty_workers_of_twenty_cost_less_than_two_points(fault: str) -> None:
    alone = sum(accuracy("mean", "crash", 19, seed) for seed in SEEDS) / len(SEEDS)
    found = sum(accuracy("zeno_auto", fault, 19, seed) for seed in SEEDS) / len(SEEDS)
    assert found > alone - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("faulty", [0, 4, 8, 12, 16, 19])
def test_it_is_as_good_as_one_that_is_told_how_many_are_faulty(faulty: int) -> None:
    told = f"zeno(trim={faulty}, batch_size=32)"
    knows = sum(accuracy(told, "label_flip", faulty, seed) for seed in SEEDS) / len(SEEDS)
    finds_out = sum(accuracy("zeno_auto", "label_flip", faulty, seed) for seed in SEEDS) / len(SEEDS)
    assert finds_out > knows - 0.01
