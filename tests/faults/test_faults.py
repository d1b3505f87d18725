"""Each fault by hand."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from support.fake_cluster import CAME_LATE, DIED, RAISED
from zeno.faults.alie import default_z
from zeno.faults.garbage import KINDS
from zeno.faults.line_search import worst_strength
from zeno.faults.schedule import Schedule
from zeno.training.settings import make_fault
from zeno.workers.checks import gradient_of
from zeno.workers.reply import ErrorKind

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
    with pytest.raises(ValueError, match=r"needs a task with floating-point inputs. Found torch.int64"):
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


def test_a_pulse_is_wrong_at_the_last_of_every_few_steps() -> None:
    def wrong(fault: zeno.Fault, first: int, steps: int) -> list[int]:
        sent = {step: fault.on_gradients(seen(step=step)) for step in range(first, first + steps)}
        assert all(torch.equal(each, OWN) or torch.equal(each, -10 * OWN) for each in sent.values())
        return [step for step, each in sent.items() if not torch.equal(each, OWN)]

    assert wrong(zeno.Pulse(), 0, 30) == [9, 19, 29]
    assert wrong(zeno.Pulse(every=3, start=5), 5, 8) == [7, 10]
    assert wrong(zeno.Pulse(every=1), 0, 3) == [0, 1, 2]
    assert zeno.Pulse(every=1, scale=2.0).on_gradients(seen()).tolist() == [[-2.0, 4.0], [-6.0, -8.0]]


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
    assert (1 + math.erf(default_z(workers, faulty) / math.sqrt(2))) / 2 == pytest.approx(nearer)


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
    """A rule that averages the candidates whose norm is within the limit."""

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
    sent = zeno.Omniscient().on_gradients(seen(own, correct, aggregate=rule))
    assert torch.equal(sent[0], sent[1])
    assert sent[0].norm() == pytest.approx(3.0, rel=0.03)
    assert sent[0, 0] < -2.5
    assert len(calls) <= 24
    unbound = zeno.Omniscient().on_gradients(seen(own, correct, aggregate=believed(math.inf)))
    assert unbound[0, 0] < -100


def test_omniscient_makes_the_rule_skip_where_that_is_the_worst() -> None:
    def rule(candidates: Tensor) -> Tensor | None:
        return None if candidates[0].norm() > 50 else candidates[2:].mean(dim=0)

    assert zeno.Omniscient().on_gradients(seen(aggregate=rule))[0].norm() > 50


def test_omniscient_sends_minus_the_mean_if_the_rule_is_unknown() -> None:
    assert zeno.Omniscient().on_gradients(seen()).tolist() == [pytest.approx([-5.0, -5.2])] * 2


# Of the strengths tried, 0.1 to 100, the largest is refined 7 times towards 1000: to 1000 * 10 ** (-1 / 2**7).
LARGEST = 1000 * 10 ** (-1 / 128)


def test_a_line_search_goes_to_the_end_where_the_harm_grows_without_bound() -> None:
    scene = seen(aggregate=believed(math.inf))
    strength = worst_strength(scene, lambda t: -t * scene.mu, against=scene.mu, unknown=7.0)
    assert strength == pytest.approx(LARGEST)
    assert worst_strength(seen(), lambda t: -t * scene.mu, against=scene.mu, unknown=7.0) == 7.0
    broken = seen(OWN * math.inf, aggregate=believed(math.inf))
    assert worst_strength(broken, lambda t: -t * broken.mu, against=broken.mu, unknown=7.0) == 7.0


@pytest.mark.parametrize("limit", [0.15, 0.7, 3.0, 25.0, 140.0, 999.0])
def test_a_line_search_ends_just_below_the_strength_that_the_rule_rejects(limit: float) -> None:
    scene = seen(column(0.1), column(0.1, 0.1), aggregate=believed(limit))
    strength = worst_strength(scene, lambda t: column(-t), against=torch.ones(1), unknown=7.0)
    assert limit * 10 ** (-1 / 64) < strength <= limit, "7 halvings of a factor of 10"


def test_a_line_search_tries_no_number_that_is_not_finite() -> None:
    huge = torch.tensor([[1e37]])
    seen_by_rule: list[Tensor] = []

    def rule(candidates: Tensor) -> Tensor:
        seen_by_rule.append(candidates.clone())
        return candidates.mean(dim=0)

    sent = zeno.OptInnerProduct().on_gradients(seen(huge, huge, aggregate=rule))
    assert torch.stack(seen_by_rule).isfinite().all()
    assert -3.5e38 < sent.item() < -1e38


def test_opt_inner_product_sends_as_much_of_minus_the_mean_as_the_rule_lets_through() -> None:
    own, correct = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 4.0], [3.0, 4.0]])  # mu of norm 5
    sent = zeno.OptInnerProduct().on_gradients(seen(own, correct, aggregate=believed(40.0)))
    eps = -sent[0, 0].item() / 3
    assert sent[0, 1].item() == pytest.approx(-4 * eps)
    assert 8 * 10 ** (-1 / 64) < eps <= 8
    unbound = zeno.OptInnerProduct().on_gradients(seen(own, correct, aggregate=believed(math.inf)))
    assert unbound[0].tolist() == pytest.approx([-3 * LARGEST, -4 * LARGEST])
    assert zeno.OptInnerProduct().on_gradients(seen()).tolist() == zeno.InnerProduct().on_gradients(seen()).tolist()


def test_opt_alie_goes_as_many_deviations_from_the_mean_as_the_rule_lets_it() -> None:
    # mu = 1, sigma = sqrt(2): 1 - z sqrt(2) is at least -5 for z up to 6 / sqrt(2)
    z = (1 - zeno.OptALIE().on_gradients(replace(ONE, aggregate=believed(5.0))).item()) / math.sqrt(2)
    assert 6 / math.sqrt(2) * 10 ** (-1 / 64) < z <= 6 / math.sqrt(2)
    unbound = zeno.OptALIE().on_gradients(replace(ONE, aggregate=believed(math.inf)))
    assert unbound.item() == pytest.approx(1 - LARGEST * math.sqrt(2))
    assert torch.equal(zeno.OptALIE().on_gradients(seen()), zeno.ALIE().on_gradients(seen()))


def test_opt_alie_does_not_take_the_noise_of_correct_gradients_for_its_own_harm() -> None:
    def picks_one(candidates: Tensor) -> Tensor:
        """The correct gradient farthest from mu, once the faulty one is more than one deviation away."""
        return candidates[0] if candidates[0].item() > 1 - math.sqrt(2) else candidates[2]

    z = (1 - zeno.OptALIE().on_gradients(replace(ONE, aggregate=picks_one)).item()) / math.sqrt(2)
    assert 0.97 < z < 1


def test_a_turncoat_is_correct_until_its_step_and_omniscient_from_then_on() -> None:
    acts = Schedule(zeno.Turncoat(), faulty=2, workers=5, seed=0)
    assert [len(acts(step)) for step in (0, 99, 100, 1000)] == [0, 0, 2, 2]
    known = seen(step=100, aggregate=believed(20.0))
    assert torch.equal(zeno.Turncoat().on_gradients(known), zeno.Omniscient().on_gradients(known))
    assert zeno.Turncoat(start=7).start == 7


@pytest.mark.parametrize(
    ("correct", "ends"),
    [
        ([3.0, 1.0, 2.0], (0.5, 1.0)),  # the mean is positive: below the least
        ([3.0, -1.0, 4.0], (-2.0, -1.0)),
        ([-3.0, -1.0, -2.0], (-1.0, -0.5)),  # the mean is negative: above the largest
        ([-3.0, 1.0, -4.0], (1.0, 2.0)),
        ([0.0, 0.0, 0.0], (0.0, 0.0)),
    ],
)
def test_fang_sends_values_just_beyond_the_extreme_ones(correct: list[float], ends: tuple[float, float]) -> None:
    own = torch.tensor(correct[:1]).expand(2, 4000)
    rows = torch.tensor(correct)[:, None].expand(3, 4000)
    sent = zeno.Fang().on_gradients(seen(own, rows))
    least, most = ends
    assert sent.min().item() == pytest.approx(least, abs=0.002)
    assert sent.max().item() == pytest.approx(most, abs=0.002)
    assert sent.mean().item() == pytest.approx((least + most) / 2, abs=0.02)
    assert torch.equal(sent[0], sent[1]) == (least == most), "each worker draws its own"
    nobody = zeno.Fang().on_gradients(seen(rows, rows[:0]))
    assert nobody.min().item() == pytest.approx(least, abs=0.002), "all are faulty: beyond their own"


def test_fang_halves_lambda_until_the_rule_picks_it() -> None:
    # Workers: 1 faulty of 6. Distances of (0, 1, 2, 3, 4) to their 3 nearest others: 6, 4, 4, 4, 6. The largest norm is
    # 4, d = 1, m - 2k - 1 = 3: lambda starts at 4 / 3 + 4.
    start = 4 / 3 + 4
    scene = seen(column(2.0), column(0.0, 1.0, 2.0, 3.0, 4.0))
    fang = zeno.Fang("krum")
    assert fang.on_gradients(scene).item() == pytest.approx(-start), "the rule is unknown"
    krum = zeno.Krum(faulty=1)
    sent = fang.on_gradients(replace(scene, aggregate=lambda candidates: krum(candidates).update)).item()
    halvings = math.log2(start / -sent)
    assert halvings == pytest.approx(round(halvings))
    picked = {h: krum(column(-start / 2**h, 0.0, 1.0, 2.0, 3.0, 4.0)).update.item() < 0 for h in range(20)}
    assert round(halvings) == next((h for h, was_picked in picked.items() if was_picked), 20)


def test_fang_deceives_krum_with_the_first_lambda_that_it_picks() -> None:
    rows = torch.randn(14, 50, generator=torch.Generator().manual_seed(3)) + 0.1
    krum = zeno.Krum(faulty=5)
    scene = seen(rows[:5], rows[5:], aggregate=lambda candidates: krum(candidates).update)
    sent = zeno.Fang("krum").on_gradients(scene)
    signs, size = rows.mean(dim=0).sign(), sent[0].abs().max()
    torch.testing.assert_close(sent, (-size * signs).expand(5, 50))
    assert torch.equal(krum(torch.cat([sent, rows[5:]])).update, sent[0])
    assert not torch.equal(krum(torch.cat([2 * sent, rows[5:]])).update, 2 * sent[0])
    ends = zeno.Fang("krum").on_gradients(replace(scene, aggregate=lambda candidates: candidates[5]))
    unknown = zeno.Fang("krum").on_gradients(replace(scene, aggregate=None))
    torch.testing.assert_close(ends, unknown / 2**20, msg="never picked")


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_cancelling_offsets_cancel_over_the_workers_and_over_two_steps(k: int) -> None:
    rows = torch.randn(k + 2, 30, generator=torch.Generator().manual_seed(1)) + 0.3
    mu, memory = rows.mean(dim=0), dict[str, Any]()
    fault = zeno.CancellingOffsets()
    first, second = (fault.on_gradients(seen(rows[:k], rows[k:], step=step, memory=memory)) for step in (4, 5))
    for sent in (first, second):
        torch.testing.assert_close(sent.mean(dim=0), mu)
    torch.testing.assert_close((first + second) / 2, mu.expand(k, 30))
    torch.testing.assert_close(first[0], 3 * mu)
    assert (first - mu).norm(dim=1).min() > 1.5 * mu.norm(), "about 2 for each, as the direction is not orthogonal"
    assert memory["direction"].shape == (30,)
    assert memory["direction"].norm().item() == pytest.approx(1)
    if k == 4:  # cos and sin of 0, 90, 180 and 270 degrees
        torch.testing.assert_close(first[1], mu + 2 * mu.norm() * memory["direction"])
        torch.testing.assert_close(first[2:], torch.stack([-mu, 2 * mu - first[1]]))


def test_a_single_worker_with_cancelling_offsets_cancels_over_two_steps() -> None:
    sent = [zeno.CancellingOffsets(strength=3.0).on_gradients(replace(ONE, step=step)).item() for step in (0, 1)]
    assert sent == [pytest.approx(4.0), pytest.approx(-2.0)]


def test_cancelling_offsets_keep_the_strength_that_was_found_for_the_step_that_cancels_it() -> None:
    own, correct = column(1.0, 1.0), column(1.0)

    def second_only(candidates: Tensor) -> Tensor:
        return candidates[1] if candidates[1].abs() <= 5 else candidates[2]

    memory: dict[str, Any] = {}
    fault = zeno.CancellingOffsets()
    first = fault.on_gradients(seen(own, correct, aggregate=second_only, memory=memory)).flatten()
    strength = first[0].item() - 1
    assert first[1].item() == pytest.approx(1 - strength)
    assert 6 * 10 ** (-1 / 64) < strength <= 6, "1 - strength is at least -5"
    calls = [0]

    def counted(candidates: Tensor) -> Tensor:
        calls[0] += 1
        return second_only(candidates)

    second = fault.on_gradients(seen(own, correct, step=1, aggregate=counted, memory=memory)).flatten()
    assert second.tolist() == pytest.approx([1 - strength, 1 + strength])
    assert calls == [0]


def test_candidates_are_in_order_of_the_workers_and_nan_without_a_gradient() -> None:
    scene = seen(workers=[1, 3], others={0: CORRECT[0], 4: CORRECT[1]}, size=5)
    rows = scene.candidates(-OWN)
    assert rows[[0, 1, 3, 4]].tolist() == [[5.0, 6.0], [-1.0, 2.0], [-3.0, -4.0], [7.0, 8.0]]
    assert rows[2].isnan().all()


# Behaviour


def behaved(fault: zeno.Fault, step: int, memory: dict[str, Any], gone: bool = False) -> list[tuple[Any, ...]]:
    """(worker, step, error, late) of the replies that replace those of workers 0, 1 and, if `gone`, 2."""
    replies = [zeno.Reply(0, step, OWN[0]), zeno.Reply(1, step, OWN[1])]
    replies += [zeno.Reply(2, step, None, RAISED)] if gone else []
    found = list(fault.on_replies(replies, seen(step=step, memory=memory)))
    assert all(reply.gradient is None for reply in found)
    return [(r.worker, r.step, r.error, r.late) for r in found]


def test_a_crash_is_an_error_and_a_hang_is_silence() -> None:
    assert behaved(zeno.Crash(), 4, {}) == [(0, 4, DIED, False), (1, 4, DIED, False)]
    assert behaved(zeno.Hang(), 4, {}) == []


def test_replies_of_slow_workers_arrive_after_their_step() -> None:
    memory: dict[str, Any] = {}
    assert behaved(zeno.Slow(steps=2), 4, memory) == behaved(zeno.Slow(steps=2), 5, memory) == []
    assert behaved(zeno.Slow(steps=2), 6, memory, gone=True) == [
        (2, 6, RAISED, False),
        (0, 4, CAME_LATE, True),
        (1, 4, CAME_LATE, True),
    ]
    assert behaved(zeno.Slow(steps=2), 9, memory) == [
        (worker, step, CAME_LATE, True) for step in (5, 6) for worker in (0, 1)
    ], "all that is due, also after steps at which it was quick"


def test_garbage_is_of_many_kinds_and_never_a_gradient() -> None:
    own = torch.ones(300, 4)
    replies = [zeno.Reply(worker, 7, row) for worker, row in enumerate(own)]
    odd = zeno.Reply(300, 7, None, RAISED)
    *sent, last = zeno.Garbage().on_replies([*replies, odd], seen(own, own))
    assert last is odd
    errors = [gradient_of(reply, 7, torch.zeros(4)) for reply in sent]
    reasons = {str(error) for error in errors}
    assert {error.kind for error in errors if isinstance(error, zeno.ReplyError)} == {ErrorKind.MALFORMED}
    assert reasons == {
        "sent numbers of shape [5], expected [4]",
        "sent numbers of shape [2], expected [4]",
        "sent str, expected a tensor",
        "sent torch.float64, torch.strided, expected torch.float32, torch.strided",
        "sent the gradient of step -93, expected step 7",
    }
    assert len(reasons) == len(KINDS)


# Parameters


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_faults_raise_for_sizes_that_are_not_positive_and_finite(value: float) -> None:
    for kind, name in [
        (zeno.SignFlip, "scale"),
        (zeno.Gaussian, "sigma"),
        (zeno.FeatureNoise, "sigma"),
        (zeno.Huge, "value"),
        (zeno.ALIE, "z"),
        (zeno.InnerProduct, "eps"),
        (zeno.CancellingOffsets, "strength"),
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
        ("random_bits(bits=33)", "RandomBits needs bits as a whole number from 1 to 32. Found bits=33."),
        ("min_sum('up')", "MinSum needs direction as one of std, unit, sign. Found direction='up'."),
        ("fang('median')", "Fang needs against as one of krum, trimmed_mean. Found against='median'."),
        ("pulse(scale=0)", "Pulse needs scale as a finite number above 0. Found scale=0."),
        ("turncoat(end=100)", "Turncoat needs end as a whole number of at least 101. Found end=100."),
        ("replay(every=0)", "Replay needs every as a whole number of at least 1. Found every=0."),
        ("slow(steps=0, on=2)", "Slow needs steps as a whole number of at least 1. Found steps=0."),
        ("zero+crush", "Unknown fault 'crush'. Did you mean crash?"),
    ],
)
def test_faults_raise_for_parameters_outside_their_limits(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        make_fault(text)
    assert str(raised.value).startswith(message)
