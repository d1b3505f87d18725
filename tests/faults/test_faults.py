"""Each fault by hand, what all of them have in common, and how they reach a cluster."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zeno
from zeno.faults.alie import little
from zeno.faults.garbage import KINDS
from zeno.faults.schedule import Schedule
from zeno.problem.dataset import generator
from zeno.problem.registry import describe
from zeno.server.core import error_in
from zeno.training.run import from_settings, make_fault
from zeno.workers.cluster import NO_FAULTS, NOBODY
from zeno.workers.worker import Worker

OWN = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CORRECT = torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def seen(own: Tensor = OWN, correct: Tensor = CORRECT, **changed: Any) -> zeno.Scene:
    """The first workers are faulty, the others correct."""
    k, m = len(own), len(own) + len(correct)
    others = dict(zip(range(k, m), correct, strict=True))
    known: dict[str, Any] = {"step": 0, "workers": range(k), "rng": rng(), "size": m, "others": others}
    return zeno.Scene(own=own, correct=correct, **{**known, **changed})


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[:, None]


# Data


def test_label_flip_mirrors_the_labels() -> None:
    batch = zeno.Batch(torch.zeros(3, 1), torch.tensor([0, 3, 9]))
    assert zeno.LabelFlip().on_batch(batch, 10, rng()).targets.tolist() == [9, 6, 0]
    assert batch.targets.tolist() == [0, 3, 9]


@pytest.mark.parametrize("fault", [zeno.LabelFlip(), zeno.LabelNoise(), zeno.Backdoor(size=1)])
def test_faults_of_labels_need_labels(fault: zeno.Fault) -> None:
    with pytest.raises(ValueError, match=f"{type(fault).__name__} needs a task with class labels"):
        fault.on_batch(zeno.Batch(torch.zeros(3, 1), torch.zeros(3)), None, rng())


def test_label_noise_draws_labels_for_a_share_of_the_batch() -> None:
    batch = zeno.Batch(torch.zeros(4000, 1), torch.full((4000,), 7))
    drawn = zeno.LabelNoise().on_batch(batch, 10, rng()).targets
    assert drawn.dtype == batch.targets.dtype
    assert drawn.bincount(minlength=10).tolist() == pytest.approx([400] * 10, abs=80)
    some = zeno.LabelNoise(share=0.25).on_batch(batch, 10, rng()).targets
    assert int((some != 7).sum()) == pytest.approx(900, abs=40), "one in ten is drawn as it was"


def test_feature_noise_adds_to_the_inputs_only() -> None:
    batch = zeno.Batch(torch.full((50, 3, 40), 5.0), torch.arange(50))
    wrong = zeno.FeatureNoise(sigma=2.0).on_batch(batch, 10, rng())
    assert wrong.inputs.mean().item() == pytest.approx(5.0, abs=0.1)
    assert wrong.inputs.std().item() == pytest.approx(2.0, rel=0.05)
    assert torch.equal(wrong.targets, batch.targets)
    with pytest.raises(ValueError, match=r"needs a task whose inputs are fractions. Found torch.int64"):
        zeno.FeatureNoise().on_batch(zeno.Batch(torch.arange(3), torch.arange(3)), 10, rng())


def test_a_backdoor_is_a_patch_in_the_corner_and_a_label() -> None:
    batch = zeno.Batch(torch.zeros(4, 1, 3, 3), torch.full((4,), 5))
    wrong = zeno.Backdoor(label=2, size=2, share=0.5, value=9.0).on_batch(batch, 10, rng())
    hit = wrong.targets == 2
    assert int(hit.sum()) == 2
    assert wrong.targets[~hit].tolist() == [5, 5]
    assert wrong.inputs[hit].tolist() == [[[[0.0, 0.0, 0.0], [0.0, 9.0, 9.0], [0.0, 9.0, 9.0]]]] * 2
    assert torch.equal(wrong.inputs[~hit], torch.zeros(2, 1, 3, 3))
    vectors = zeno.Batch(torch.zeros(1, 5), torch.tensor([5]))
    assert zeno.Backdoor(share=1.0).on_batch(vectors, 10, rng()).inputs.tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]]
    with pytest.raises(ValueError, match=r"label below classes=10. Found label=10"):
        zeno.Backdoor(label=10).on_batch(batch, 10, rng())
    with pytest.raises(ValueError, match=r"at least size=4 each way. Found \[3, 3\]. Lower size"):
        zeno.Backdoor(size=4).on_batch(batch, 10, rng())


# Messages


def test_bit_flip_sends_minus_the_first_faulty_gradient_from_all() -> None:
    assert zeno.BitFlip().on_gradients(seen()).tolist() == [[-1.0, 2.0], [-1.0, 2.0]]


def test_sign_flip_sends_minus_the_own_gradient_scaled() -> None:
    assert zeno.SignFlip().on_gradients(seen()).tolist() == [[-1.0, 2.0], [-3.0, -4.0]]
    assert zeno.SignFlip(10.0).on_gradients(seen()).tolist() == [[-10.0, 20.0], [-30.0, -40.0]]


def test_gaussian_sends_noise_of_the_given_deviation() -> None:
    sent = zeno.Gaussian(sigma=200.0).on_gradients(seen(torch.ones(2, 50_000), torch.ones(1, 50_000)))
    assert sent.dtype == torch.float32
    assert sent.mean().item() == pytest.approx(0, abs=3)
    assert sent.std().item() == pytest.approx(200, rel=0.02)
    assert not torch.equal(sent[0], sent[1])


def test_zero_and_huge_send_one_number() -> None:
    assert zeno.Zero().on_gradients(seen()).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert zeno.Huge(value=2.0**90).on_gradients(seen()).tolist() == [[2.0**90] * 2] * 2


def test_non_finite_spoils_one_number_of_each_gradient() -> None:
    own = torch.arange(2000.0).reshape(200, 10)
    sent = zeno.NonFinite().on_gradients(seen(own, own))
    wrong = sent != own  # NaN differs as well
    assert wrong.sum(dim=1).tolist() == [1] * 200
    assert {str(value) for value in sent[wrong].tolist()} == {"nan", "inf", "-inf"}
    assert set(wrong.nonzero()[:, 1].tolist()) == set(range(10)), "anywhere"


def test_replay_sends_the_first_gradient_again_and_again() -> None:
    memory: dict[str, Any] = {}

    def sent(fault: zeno.Fault, step: int, workers: list[int]) -> list[float]:
        own = torch.tensor([[100.0 * step + worker] for worker in workers])
        scene = seen(own, own, step=step, workers=workers, memory=memory)
        return fault.on_gradients(scene).flatten().tolist()

    assert sent(zeno.Replay(), 3, [0, 1]) == [300, 301]
    assert sent(zeno.Replay(), 4, [1]) == [301]
    assert sent(zeno.Replay(), 5, [0, 1, 2]) == [300, 301, 502], "the third is new"
    memory.clear()
    assert [sent(zeno.Replay(every=2), step, [0])[0] for step in range(5)] == [0, 0, 200, 200, 400]


def test_random_bits_flips_so_many_bits_in_so_many_words() -> None:
    own = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    sent = zeno.RandomBits(words=50, bits=3).on_gradients(seen(own, own))
    flipped = sent.numpy().view(np.uint32) ^ own.numpy().view(np.uint32)
    bits = np.unpackbits(flipped.view(np.uint8)[..., None], axis=-1).reshape(3, 1000, 32).sum(axis=-1)
    assert [np.unique(row, return_counts=True)[1].tolist() for row in bits] == [[950, 50]] * 3
    assert bits.max() == 3
    assert np.bitwise_or.reduce(flipped, axis=None) == 0xFFFFFFFF, "any of the 32"
    everywhere = zeno.RandomBits(words=5000, bits=32).on_gradients(seen(own, own))
    assert torch.equal(everywhere.view(torch.int32), ~own.view(torch.int32))
    with pytest.raises(ValueError, match=r"RandomBits needs gradients in float32. Found torch.float64"):
        zeno.RandomBits().on_gradients(seen(own.double(), own.double()))


# Colluding: 0, 0 and 3 were computed correctly, of which the first is a faulty worker's. mu = 1, sigma = sqrt(2)

ONE = seen(column(0.0), column(0.0, 3.0))


def test_mean_and_deviation_are_over_all_that_was_computed_correctly() -> None:
    assert ONE.mu.tolist() == [1.0]
    assert ONE.sigma.tolist() == pytest.approx([math.sqrt(2)])
    lonely = seen(column(0.0, 0.0), column(3.0))
    assert lonely.sigma.tolist() == pytest.approx([math.sqrt(2)]), "one correct worker has a deviation to hide in"


@pytest.mark.parametrize(
    ("workers", "faulty", "nearer"),
    [(20, 8, 9 / 12), (50, 12, 24 / 38), (20, 10, 0.9), (20, 12, 0.9), (20, 19, 0.9), (5, 2, 2 / 3), (5, 3, 2 / 3)],
)
def test_alie_goes_as_far_as_the_published_formula_says(workers: int, faulty: int, nearer: float) -> None:
    assert (1 + math.erf(little(workers, faulty) / math.sqrt(2))) / 2 == pytest.approx(nearer)


def test_alie_sends_the_mean_less_some_deviations() -> None:
    assert zeno.ALIE(z=2.0).on_gradients(ONE).tolist() == [pytest.approx([1 - 2 * math.sqrt(2)])]
    sent = zeno.ALIE().on_gradients(seen(OWN, CORRECT))
    mu, sigma = torch.cat([OWN, CORRECT]).mean(0), torch.cat([OWN, CORRECT]).std(0, correction=0)
    torch.testing.assert_close(sent, (mu - 0.4307273 * sigma).expand(2, 2))  # Phi^-1(2 / 3)
    assert zeno.ALIE().on_gradients(seen(column(1.0), column(3.0))).tolist() == [[2.0]], "two workers: nowhere to hide"


def test_inner_product_sends_a_part_of_minus_the_mean() -> None:
    assert zeno.InnerProduct(eps=0.25).on_gradients(seen()).tolist() == [pytest.approx([-1.25, -1.3])] * 2


def test_mimic_copies_the_first_correct_worker() -> None:
    assert zeno.Mimic().on_gradients(seen()).tolist() == [[5.0, 6.0], [5.0, 6.0]]
    assert torch.equal(zeno.Mimic().on_gradients(seen(correct=CORRECT[:0])), OWN), "nobody to copy"


def test_min_max_and_min_sum_by_hand() -> None:
    # Largest distance 3; 1 - gamma is 2 + gamma away from 3.
    assert zeno.MinMax("sign").on_gradients(ONE).tolist() == [[0.0]]
    # Largest sum of squares 9 + 9 (from 3); around mu 1 + 1 + 4, and 3 gamma^2 more.
    assert zeno.MinSum("sign").on_gradients(ONE).tolist() == [[-1.0]]
    same = seen(column(2.0), column(2.0))
    for fault in (zeno.MinMax(), zeno.MinSum()):
        assert fault.on_gradients(same).tolist() == [[2.0]], "no deviation, no direction"


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@pytest.mark.parametrize("kind", [zeno.MinMax, zeno.MinSum])
def test_min_max_and_min_sum_go_as_far_as_they_may_and_no_farther(
    kind: type[zeno.MinMax | zeno.MinSum], direction: str
) -> None:
    rows = torch.randn(9, 30, generator=torch.Generator().manual_seed(1)) + 0.3
    sent = kind(direction).on_gradients(seen(rows[:4], rows[4:]))
    assert torch.equal(sent[0], sent[3])
    exact, mu = rows.double(), rows.double().mean(dim=0)
    p = {"std": exact.std(0, correction=0), "unit": mu / mu.norm(), "sign": mu.sign()}[direction]
    away = sent[0].double() - mu
    torch.testing.assert_close(-away / away.norm(), p / p.norm(), rtol=1e-5, atol=1e-6)

    def far(vector: Tensor) -> float:
        squares = (exact - vector).square().sum(dim=1)
        return float(squares.max() if kind is zeno.MinMax else squares.sum())

    most = max(far(row) for row in exact)
    assert far(mu + 0.9999 * away) < most < far(mu + 1.0001 * away)


def believed(limit: float) -> Callable[[Tensor], Tensor | None]:
    """A rule that averages what is no longer than the limit."""

    def rule(candidates: Tensor) -> Tensor:
        return candidates[candidates.norm(dim=1) <= limit].mean(dim=0)

    return rule


def test_omniscient_goes_as_far_back_as_the_rule_in_use_lets_it() -> None:
    calls: list[int] = []

    def rule(candidates: Tensor) -> Tensor | None:
        assert candidates.shape == (5, 2)
        assert torch.equal(candidates[2:], correct)
        calls.append(1)
        return believed(3.0)(candidates)

    own, correct = torch.tensor([[1.0, 0.1], [1.0, -0.1]]), torch.tensor([[1.0, 0.2], [1.0, 0.0], [1.0, -0.2]])
    sent = zeno.Omniscient().on_gradients(seen(own, correct, believe=rule))
    assert torch.equal(sent[0], sent[1])
    assert sent[0].norm() == pytest.approx(3.0, rel=0.03)
    assert sent[0, 0] < -2.5
    assert len(calls) <= 24
    unbound = zeno.Omniscient().on_gradients(seen(own, correct, believe=believed(math.inf)))
    assert unbound[0, 0] < -100


def test_omniscient_makes_the_rule_skip_where_that_is_the_worst() -> None:
    def rule(candidates: Tensor) -> Tensor | None:
        return None if candidates[0].norm() > 50 else candidates[2:].mean(dim=0)

    assert zeno.Omniscient().on_gradients(seen(believe=rule))[0].norm() > 50


def test_omniscient_sends_minus_the_mean_where_nobody_knows_the_rule() -> None:
    assert zeno.Omniscient().on_gradients(seen()).tolist() == [pytest.approx([-5.0, -5.2])] * 2


def test_candidates_are_in_order_of_the_workers_and_nan_where_nothing_comes() -> None:
    scene = seen(workers=[1, 3], others={0: CORRECT[0], 4: CORRECT[1]}, size=5)
    rows = scene.candidates(-OWN)
    assert rows[[0, 1, 3, 4]].tolist() == [[5.0, 6.0], [-1.0, 2.0], [-3.0, -4.0], [7.0, 8.0]]
    assert rows[2].isnan().all()


# Behaviour


def behaved(fault: zeno.Fault, step: int, memory: dict[str, Any], gone: bool = False) -> list[tuple[Any, ...]]:
    """(worker, step, error, late) of what comes instead of the replies of workers 0, 1 and, if it is gone, 2."""
    replies = [zeno.Reply(0, step, OWN[0]), zeno.Reply(1, step, OWN[1])]
    replies += [zeno.Reply(2, step, None, "raised")] if gone else []
    found = list(fault.on_replies(replies, seen(step=step, memory=memory)))
    assert all(reply.gradient is None for reply in found)
    return [(r.worker, r.step, r.error, r.late) for r in found]


def test_a_crash_is_an_error_and_a_hang_is_silence() -> None:
    assert behaved(zeno.Crash(), 4, {}) == [(0, 4, "died", False), (1, 4, "died", False)]
    assert behaved(zeno.Hang(), 4, {}) == []


def test_slow_workers_answer_when_the_step_is_over() -> None:
    memory: dict[str, Any] = {}
    assert behaved(zeno.Slow(steps=2), 4, memory) == behaved(zeno.Slow(steps=2), 5, memory) == []
    assert behaved(zeno.Slow(steps=2), 6, memory, gone=True) == [
        (2, 6, "raised", False),
        (0, 4, "came late", True),
        (1, 4, "came late", True),
    ]
    assert behaved(zeno.Slow(steps=2), 9, memory) == [
        (worker, step, "came late", True) for step in (5, 6) for worker in (0, 1)
    ], "all that is due, also after steps at which it was quick"


def test_garbage_is_of_many_kinds_and_never_a_gradient() -> None:
    own = torch.ones(300, 4)
    replies = [zeno.Reply(worker, 7, row) for worker, row in enumerate(own)]
    odd = zeno.Reply(300, 7, None, "raised")
    *sent, last = zeno.Garbage().on_replies([*replies, odd], seen(own, own))
    assert last is odd
    reasons = {error_in(reply, 7, torch.zeros(4)) for reply in sent}
    assert reasons == {
        "sent numbers of shape [5], expected [4]",
        "sent numbers of shape [2], expected [4]",
        "sent str, expected a tensor",
        "sent torch.float64, torch.strided, expected torch.float32, torch.strided",
        "sent the gradient of step -93, expected step 7",
    }
    assert len(reasons) == len(KINDS)


# What they refuse


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_faults_refuse_a_size_that_is_none(value: float) -> None:
    for kind, name in [
        (zeno.SignFlip, "scale"),
        (zeno.Gaussian, "sigma"),
        (zeno.FeatureNoise, "sigma"),
        (zeno.Huge, "value"),
        (zeno.ALIE, "z"),
        (zeno.InnerProduct, "eps"),
    ]:
        with pytest.raises(ValueError, match=f"{kind.__name__} needs {name} as a finite number above 0"):
            kind(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zero(on=0)", "Zero needs on as a whole number of at least 1. Found on=0."),
        ("zero(on=1.5)", "Zero needs on as a whole number of at least 1. Found on=1.5."),
        ("zero(start=-1)", "Zero needs start as a whole number of at least 0. Found start=-1."),
        ("sign_flip(start=5, end=5)", "SignFlip needs end as a whole number of at least 6. Found end=5."),
        ("gaussian(chance=0)", "Gaussian needs chance as a number above 0 and at most 1. Found chance=0."),
        ("crash(redraw=1)", "Crash needs redraw as True or False. Found redraw=1."),
        ("label_noise(share=1.1)", "LabelNoise needs share as a number above 0 and at most 1. Found share=1.1."),
        ("backdoor(size=0)", "Backdoor needs size as a whole number of at least 1. Found size=0."),
        ("random_bits(bits=33)", "RandomBits needs bits of at most 32: a word has no more. Found bits=33."),
        ("min_sum('up')", "MinSum needs direction as one of std, unit, sign. Found direction='up'."),
        ("replay(every=0)", "Replay needs every as a whole number of at least 1. Found every=0."),
        ("slow(steps=0, on=2)", "Slow needs steps as a whole number of at least 1. Found steps=0."),
        ("zero+crush", "Unknown fault 'crush'. Did you mean crash?"),
    ],
)
def test_faults_refuse_what_makes_no_sense(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        make_fault(text)
    assert str(refused.value).startswith(message)


# Who, and when


def at(fault: zeno.Fault, step: int, faulty: int = 6, **changed: Any) -> dict[int, zeno.Fault]:
    return Schedule(**{"fault": fault, "faulty": faulty, "workers": 20, "seed": 3, **changed})(step)


def test_a_fault_acts_from_its_first_step_until_it_is_mended() -> None:
    fault = zeno.Zero(start=2, end=4)
    assert [sorted(at(fault, step)) for step in range(5)] == [[], [], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], []]
    assert at(fault, 2) == dict.fromkeys(range(6), fault)


def test_a_fault_strikes_as_often_as_its_chance_says() -> None:
    struck = [sorted(at(zeno.Zero(chance=0.3), step)) for step in range(500)]
    counts = np.bincount([worker for workers in struck for worker in workers])
    assert counts.tolist() == pytest.approx([150] * 6, abs=40)
    assert len({tuple(workers) for workers in struck}) > 20, "each worker for itself"
    assert struck[:9] == [sorted(at(zeno.Zero(chance=0.3), step)) for step in range(9)]
    assert [w for w in range(6) if generator(3, "chance", w, 8).random() < 0.3] == struck[8]


def test_redrawn_workers_are_those_of_the_one_draw_there_always_was() -> None:
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
        ("zero(on=3)+crash(on=5)", 0, [0, 0]),
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
def test_a_run_refuses_parts_that_do_not_add_up(text: str, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_settings({"fault": text, "faulty": 8, "rule": "mean"})
    assert message in str(refused.value)


def test_faults_are_put_together_in_python_as_on_the_command_line() -> None:
    fault = zeno.LabelFlip(on=8) + zeno.Crash(on=4, start=100) + zeno.Zero()
    assert fault == make_fault("label_flip(on=8)+crash(on=4, start=100)+zero")
    assert fault.parts == (zeno.LabelFlip(on=8), zeno.Crash(on=4, start=100), zeno.Zero())
    assert zeno.Zero() + (zeno.Crash() + zeno.Hang()) == zeno.Zero() + zeno.Crash() + zeno.Hang()
    with pytest.raises(TypeError, match="Only faults can be put together"):
        zeno.Zero() + 3  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"no start of their own. Give it to one of the parts"):
        zeno.Together((zeno.Zero(), zeno.Crash()), start=3)
    with pytest.raises(ValueError, match="needs two faults or more"):
        zeno.Together((zeno.Zero(),))


OWN_PARAMETERS = {
    "label_noise": "share=0.5",
    "feature_noise": "sigma=0.5",
    "backdoor": "label=3, size=2, share=0.25, value=2.0",
    "sign_flip": "scale=10.0",
    "gaussian": "sigma=2.0",
    "huge": "value=1e+20",
    "replay": "every=3",
    "random_bits": "words=7, bits=2",
    "alie": "z=1.5",
    "inner_product": "eps=0.1",
    "min_max": "direction='sign'",
    "min_sum": "direction='unit'",
    "slow": "steps=3",
}
SCHEDULED = "on=2, start=1, end=9, chance=0.5, redraw=True"


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_descriptions_are_made_back_into_the_same_fault(name: str) -> None:
    own = OWN_PARAMETERS.get(name, "")
    for parameters in ("", own, SCHEDULED, f"{own}, {SCHEDULED}" if own else SCHEDULED):
        text = f"{name}({parameters})" if parameters else name
        fault = make_fault(text)
        assert type(fault) is zeno.FAULTS[name]
        assert describe(fault, zeno.FAULTS) == text
        both = f"{text}+zero"
        assert describe(make_fault(both), zeno.FAULTS) == both
        assert make_fault(both) == fault + zeno.Zero()
        run = zeno.Run(fault=fault + zeno.Zero(), faulty=4, rule=zeno.Mean())
        assert f'fault = "{both}"' in run.to_toml()


# What all of them have in common

M, D = 7, 211
ON_DATA = {"label_flip", "label_noise", "feature_noise", "backdoor"}
NO_NUMBERS = {"crash", "hang", "slow", "garbage"}


class Normal(zeno.Cluster):
    """Workers that send fixed normal numbers of their own."""

    size = M

    def __init__(self) -> None:
        self.rows = torch.randn(M, D, generator=torch.Generator().manual_seed(0))

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, zeno.Fault] = NO_FAULTS,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[zeno.Reply]:
        yield from (zeno.Reply(worker, step, row) for worker, row in enumerate(self.rows) if worker not in skip)

    def __exit__(self, *_: object) -> None:
        pass


def sent_under(fault: zeno.Fault, seed: int, steps: int = 2) -> list[list[zeno.Reply]]:
    inner = Normal()
    cluster = zeno.Faulty(inner, lambda step: dict.fromkeys([1, 2, 5], fault), seed)
    cluster.trial = lambda candidates, step: candidates.nanmean(dim=0)
    found = [list(cluster.gradients(torch.zeros(D), {}, step)) for step in range(steps)]
    assert torch.equal(inner.rows, Normal().rows), "what workers computed is not written to"
    return found


def as_text(replies: list[list[zeno.Reply]]) -> str:
    torch.set_printoptions(threshold=10**6, precision=9)
    try:
        return repr(replies)
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_every_fault_keeps_to_its_workers_and_depends_on_seed_and_step_alone(name: str) -> None:
    fault = make_fault(name)
    sent = sent_under(fault, seed=0)
    assert as_text(sent) == as_text(sent_under(fault, seed=0))
    if name in ("gaussian", "non_finite", "random_bits", "garbage"):
        assert as_text(sent) != as_text(sent_under(fault, seed=1))
        assert as_text(sent[:1]) != as_text(sent[1:]).replace("step=1", "step=0")
    for replies in sent:
        by_worker = {reply.worker: reply.gradient for reply in replies if not reply.late}
        assert [i for i in by_worker if i not in (1, 2, 5)] == [0, 3, 4, 6]
        for i, row in enumerate(Normal().rows):
            gradient: Any = by_worker.get(i)
            if i not in (1, 2, 5):
                assert torch.equal(gradient, row)
            elif name not in NO_NUMBERS:
                assert (gradient.shape, gradient.dtype) == ((D,), torch.float32)
            if i in (1, 2, 5) and name not in NO_NUMBERS | ON_DATA | {"replay"}:
                assert not torch.equal(gradient, row)


def in_bits(reply: zeno.Reply) -> tuple[object, ...]:
    sent: Any = reply.gradient
    content = (sent.dtype, sent.numpy().tobytes()) if isinstance(sent, Tensor) else sent
    return reply.worker, reply.step, reply.late, reply.error, content


class Dying(Normal):
    """Nothing comes from some of the workers; remembers who was asked."""

    def __init__(self, *dead: int) -> None:
        super().__init__()
        self.dead = dead
        self.asked: list[list[int]] = []

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, zeno.Fault] = NO_FAULTS,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[zeno.Reply]:
        self.asked.append([i for i in range(M) if i not in skip])
        for reply in super().gradients(params, buffers, step, faults, need, skip):
            yield replace(reply, gradient=None, error="died") if reply.worker in self.dead else reply


def in_bits_under(fault: zeno.Fault, faulty: Sequence[int], dead: Sequence[int] = ()) -> list[list[tuple[object, ...]]]:
    cluster = zeno.Faulty(Dying(*dead), lambda step: dict.fromkeys(faulty, fault), seed=0)
    cluster.trial = lambda candidates, step: candidates.nanmean(dim=0)
    return [[in_bits(r) for r in cluster.gradients(torch.zeros(D), {}, step)] for step in range(4)]


@pytest.mark.parametrize("faulty", [[1, 2, 5], [1], range(M)], ids=["some", "one", "all"])
@pytest.mark.parametrize("name", zeno.FAULTS)
def test_gradients_that_a_fault_does_not_need_make_no_difference(
    name: str, faulty: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for parameters in ("", OWN_PARAMETERS.get(name, "")):
        fault = make_fault(f"{name}({parameters})" if parameters else name)
        sparing = in_bits_under(fault, faulty)
        with monkeypatch.context() as patch:
            patch.setattr(type(fault), "needs", zeno.Fault.needs)
            assert sparing == in_bits_under(fault, faulty)


@pytest.mark.parametrize(
    ("fault", "dead"),
    [
        (zeno.BitFlip(), [1]),
        (zeno.BitFlip(), [1, 2]),
        (zeno.BitFlip(), [1, 2, 5]),
        (zeno.BitFlip(), [0, 3]),
        (zeno.Mimic(), [0]),
        (zeno.Mimic(), [0, 3, 4, 6]),
        (zeno.Mimic(), range(M)),
    ],
)
def test_where_what_a_fault_needs_does_not_come_it_makes_no_difference_either(
    fault: zeno.Fault, dead: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sparing = in_bits_under(fault, [1, 2, 5], dead)
    monkeypatch.setattr(type(fault), "needs", zeno.Fault.needs)
    assert sparing == in_bits_under(fault, [1, 2, 5], dead)


@pytest.mark.parametrize("name", ["bit_flip", "gaussian", "zero", "huge", "mimic", "crash", "hang", "slow"])
def test_records_are_the_same_without_the_gradients_that_a_fault_does_not_need(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = make_fault(f"{name}(chance=0.7, redraw=True)")
    run = zeno.Run(workers=6, batch_size=20, faulty=4, fault=fault, steps=6, rule=zeno.Zeno(trim=4, batch_size=16))
    sparing = zeno.train(run)
    monkeypatch.setattr(type(fault), "needs", zeno.Fault.needs)
    assert sparing == zeno.train(run)


@pytest.mark.parametrize(
    ("fault", "num"),
    [("bit_flip", 9), ("zero", 8), ("mimic", 8), ("crash", 8), ("sign_flip", 20), ("alie", 20), ("label_flip", 20),
     ("bit_flip+zero", 20), ("zero(on=6)+zero(on=6, end=1)", 20)],
)  # fmt: skip
def test_only_gradients_that_matter_are_computed(fault: str, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    batch_under = Worker.batch_under

    def counting(self: Worker, fault: zeno.Fault | None, step: int) -> zeno.Batch:
        computed.append(self.index)
        return batch_under(self, fault, step)

    monkeypatch.setattr(Worker, "batch_under", counting)
    zeno.train(zeno.Run(workers=20, batch_size=5, faulty=12, fault=make_fault(fault), steps=1, rule=zeno.Zeno(trim=12)))
    assert len(computed) == len(set(computed)) == num


def test_when_the_gradient_that_a_fault_needs_does_not_come_the_others_are_asked() -> None:
    cluster = Dying(1)
    faulty = zeno.Faulty(cluster, lambda step: dict.fromkeys([1, 2, 5], zeno.BitFlip()), seed=0)
    sent = {r.worker: r for r in faulty.gradients(torch.zeros(D), {}, 0)}
    assert cluster.asked == [[0, 1, 3, 4, 6], [2, 5]]
    assert (sent[1].gradient, sent[1].error) == (None, "died")
    for i in (2, 5):
        assert torch.equal(sent[i].gradient, -cluster.rows[2])  # type: ignore[arg-type]


def test_a_faulty_worker_that_is_skipped_sends_nothing_and_is_not_asked() -> None:
    cluster = Dying()
    faulty = zeno.Faulty(cluster, lambda step: dict.fromkeys([1, 2, 5], zeno.BitFlip()), seed=0)
    sent = {r.worker: r.gradient for r in faulty.gradients(torch.zeros(D), {}, 0, skip={0, 1})}
    assert cluster.asked == [[2, 3, 4, 6]]
    assert sorted(sent) == [2, 3, 4, 5, 6]
    assert torch.equal(sent[5], -cluster.rows[2])  # type: ignore[arg-type]


def test_faults_of_one_cluster_around_another_need_every_gradient() -> None:
    cluster = Dying()
    inner = zeno.Faulty(cluster, lambda step: {3: zeno.Zero(), 4: zeno.Zero()}, seed=0)
    list(
        zeno.Faulty(inner, lambda step: {1: zeno.BitFlip(), 2: zeno.BitFlip()}, seed=0).gradients(torch.zeros(D), {}, 0)
    )
    assert cluster.asked == [list(range(M))]


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_faults_of_the_data_change_the_batch_and_no_other_does(name: str) -> None:
    batch = zeno.Batch(torch.rand(16, 1, 8, 8), torch.arange(16) % 10)
    before = zeno.Batch(batch.inputs.clone(), batch.targets.clone())
    found = make_fault(name).on_batch(batch, 10, rng())
    assert torch.equal(batch.inputs, before.inputs)
    assert torch.equal(batch.targets, before.targets)
    same = torch.equal(found.inputs, batch.inputs) and torch.equal(found.targets, batch.targets)
    assert same == (name not in ON_DATA)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in batch]
    again = make_fault(name).on_batch(batch, 10, rng())
    assert torch.equal(again.inputs, found.inputs)
    assert torch.equal(again.targets, found.targets)


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_a_run_bears_every_fault(name: str) -> None:
    run = zeno.Run(workers=6, batch_size=20, faulty=2, fault=make_fault(name), steps=6, eval_every=6)
    records = zeno.train(replace(run, rule=zeno.Zeno(trim=2, batch_size=16)))
    assert len(records) == 6
    assert all(record.skipped is None and record.faulty == [0, 1] for record in records)
    assert records[-1].train_loss is not None
    assert records[-1].train_loss < 3
    for record in records:
        assert set(record.errors) == ({0, 1} if name in NO_NUMBERS | {"non_finite"} else set()) or name == "random_bits"
        assert record.late == ([0, 1] if name == "slow" and record.step else [])
    mean = zeno.train(replace(run, rule=zeno.Mean()))
    assert len(mean) == 6
    assert (mean[-1].train_loss is None) == (name == "random_bits"), "a flipped exponent drives the mean out of range"


def test_a_run_has_several_faults_at_their_times_on_their_workers() -> None:
    fault = zeno.Crash(on=1, start=1, end=3) + zeno.Garbage(on=1, start=2) + zeno.SignFlip()
    records = zeno.train(
        zeno.Run(workers=6, batch_size=20, faulty=3, fault=fault, steps=4, rule=zeno.Zeno(trim=3, batch_size=16))
    )
    assert [record.faulty for record in records] == [[2], [0, 2], [0, 1, 2], [1, 2]]
    assert [sorted(record.errors) for record in records] == [[], [0], [0, 1], [1]]
    assert records[1].errors == {0: "died"}


def test_without_faulty_workers_no_fault_acts() -> None:
    run = zeno.Run(workers=4, batch_size=20, steps=3, rule=zeno.Mean())
    assert zeno.train(replace(run, fault=zeno.Crash(on=2) + zeno.Zero(on=1))) == zeno.train(run)


def test_an_omniscient_fault_does_worse_to_the_mean_than_one_that_only_flips_signs() -> None:
    run = zeno.Run(workers=6, batch_size=20, faulty=2, steps=6, eval_every=6, rule=zeno.Mean())
    omniscient, flipped = (
        zeno.train(replace(run, fault=f))[-1].train_loss for f in (zeno.Omniscient(), zeno.SignFlip())
    )
    assert flipped is not None
    assert omniscient is None or omniscient > flipped + 1


# On a cluster


class Fixed(zeno.Cluster):
    """Three workers that send 1, 2 and nothing; remembers which faults reached their batches."""

    size = 3

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, zeno.Fault] = NO_FAULTS,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[zeno.Reply]:
        self.faults = dict(faults)
        yield zeno.Reply(1, step, torch.full_like(params, 2.0))
        yield zeno.Reply(0, step, torch.full_like(params, 1.0))
        yield zeno.Reply(2, step, None, "died")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


def replies(cluster: zeno.Cluster, step: int = 0) -> dict[int, float | None]:
    return {
        r.worker: None if r.gradient is None else r.gradient[0].item()
        for r in cluster.gradients(torch.zeros(2), {}, step)
    }


def flipping(cluster: zeno.Cluster, *workers: int) -> zeno.Faulty:
    return zeno.Faulty(cluster, lambda step: dict.fromkeys(workers, zeno.SignFlip()), seed=0)


def test_faults_act_on_the_workers_they_are_given_and_on_no_other() -> None:
    inner = Fixed()
    cluster = zeno.Faulty(inner, lambda step: dict.fromkeys([step % 2, 2], zeno.SignFlip(3.0)), seed=0)
    assert replies(cluster, step=0) == {1: 2.0, 0: -3.0, 2: None}
    assert replies(cluster, step=1) == {1: -6.0, 0: 1.0, 2: None}
    assert inner.faults == {1: zeno.SignFlip(3.0), 2: zeno.SignFlip(3.0)}


def test_all_workers_or_only_silent_ones_may_be_faulty() -> None:
    assert replies(flipping(Fixed(), 0, 1, 2)) == {1: -2.0, 0: -1.0, 2: None}
    assert replies(flipping(Fixed(), 2)) == {1: 2.0, 0: 1.0, 2: None}


def test_what_a_fault_draws_depends_on_the_seed_and_the_step() -> None:
    def sent(seed: int, step: int) -> float | None:
        return replies(zeno.Faulty(Fixed(), lambda step: {0: zeno.Gaussian()}, seed), step)[0]

    assert sent(0, 0) == sent(0, 0)
    assert len({sent(0, 0), sent(0, 1), sent(1, 0)}) == 3


def test_workers_that_are_silent_or_send_other_sizes_are_passed_on_as_they_are() -> None:
    class Odd(Fixed):
        def gradients(
            self,
            params: Tensor,
            buffers: Mapping[str, Tensor],
            step: int,
            faults: Mapping[int, zeno.Fault] = NO_FAULTS,
            need: int = 1,
            skip: Collection[int] = NOBODY,
        ) -> Iterator[zeno.Reply]:
            yield zeno.Reply(0, step, torch.ones(5))
            yield zeno.Reply(1, step, torch.ones(2))

    assert replies(flipping(Odd(), 0, 1, 2)) == {0: 1.0, 1: -1.0}


def test_a_faulty_cluster_closes_the_one_inside() -> None:
    inner = Fixed()
    with flipping(inner):
        pass
    assert inner.closed


def test_label_flip_reaches_the_gradient_of_its_worker() -> None:
    problem = zeno.Problem(nn.Linear(2, 3))
    dataset = zeno.Dataset(torch.rand(30, 2), torch.arange(30) % 3, classes=3)
    workers = [Worker(i, problem, dataset, torch.arange(30), batch_size=5, seed=0) for i in range(2)]
    cluster = zeno.Faulty(zeno.LocalCluster(workers), lambda step: {1: zeno.LabelFlip()}, seed=0)
    params = problem.flat.clone()
    sent = {r.worker: r.gradient for r in cluster.gradients(params, {}, step=4)}

    batch = workers[1].batch(4)
    flipped = zeno.Batch(batch.inputs, 2 - batch.targets)
    assert torch.equal(sent[0], problem.gradient(params, workers[0].batch(4), 0))  # type: ignore[arg-type]
    assert torch.equal(sent[1], problem.gradient(params, flipped, 0))  # type: ignore[arg-type]


def test_each_fault_sees_its_own_workers_those_without_any_and_what_was_sent_before() -> None:
    scenes = []

    class Looking(zeno.Fault):
        def on_gradients(self, scene: zeno.Scene) -> Tensor:
            scenes.append(scene)
            return scene.own

    class Stale(zeno.Fault):
        def on_replies(self, replies: Sequence[zeno.Reply], scene: zeno.Scene) -> list[zeno.Reply]:
            return [replace(reply, step=scene.step - 1) for reply in replies]

    faults = {0: zeno.SignFlip(), 1: Stale(), 2: Looking(), 5: Looking(), 6: zeno.SignFlip(2.0)}
    cluster = zeno.Faulty(Normal(), lambda step: faults, seed=0)
    cluster.trial = lambda candidates, step: candidates.mean(dim=0) * step
    list(cluster.gradients(torch.zeros(D), {}, 4))
    (scene,), rows = scenes, Normal().rows
    assert (scene.step, scene.size, scene.workers) == (4, M, [2, 5])
    assert torch.equal(scene.own, rows[[2, 5]])
    assert torch.equal(scene.correct, rows[[3, 4]])
    assert torch.equal(scene.computed, rows[[2, 5, 3, 4]])
    assert sorted(scene.others) == [0, 3, 4, 6], "what is of another step will not count"
    assert torch.equal(scene.others[0], -rows[0]), "sent before"
    assert torch.equal(scene.others[6], rows[6]), "to be flipped later"
    assert scene.believe is not None
    update = scene.believe(rows)
    assert update is not None
    assert torch.equal(update, rows.mean(dim=0) * 4)


def test_late_replies_of_the_cluster_inside_pass_through() -> None:
    class Late(Normal):
        def gradients(self, *args: Any, **keywords: Any) -> Iterator[zeno.Reply]:
            yield from super().gradients(*args, **keywords)
            yield zeno.Reply(1, 3, None, "came late", late=True)

    sent = zeno.Faulty(Late(), lambda step: {1: zeno.Hang(), 2: zeno.Slow()}, seed=0).gradients(torch.zeros(D), {}, 9)
    assert [(reply.worker, reply.late) for reply in sent] == [(1, True), (0, False), *((i, False) for i in range(3, M))]


def test_what_faults_remember_is_saved_and_loaded() -> None:
    def faulty() -> zeno.Faulty:
        return zeno.Faulty(Normal(), lambda step: {1: zeno.Replay(), 2: zeno.Slow(steps=2)}, seed=0)

    first, second = faulty(), faulty()
    for step in range(2):
        list(first.gradients(torch.zeros(D), {}, step))
    second.load_state(first.state_to_save())
    second.cluster.rows += 1  # type: ignore[attr-defined]
    late, *sent = second.gradients(torch.zeros(D), {}, 2)
    assert (late.worker, late.step, late.late) == (2, 0, True)
    assert torch.equal(sent[1].gradient, Normal().rows[1])  # type: ignore[arg-type]
