"""What Zeno remembers of its workers, and what it finds out by itself: who is good, what is large, how many samples."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from zeno.rules.standing import CREDIT, MOST, PARTS, RATE, Standing, judge
from zeno.training.settings import from_settings

M = 20


def candidates(size: Sequence[float] | float = 1.0) -> Tensor:
    """One row for each worker, which says whose it is; all distinct, of about this size."""
    rows = torch.ones(M, 2)
    rows[:, 1] = torch.arange(M) / 1000
    return rows * torch.as_tensor(size, dtype=torch.float32).reshape(-1, 1).expand(M, 1)


class Noisy:
    """An oracle that knows how good each worker is, and says so with noise that falls with the number of samples."""

    lr = 0.1

    def __init__(self, quality: Tensor, noise: float, seed: int = 0) -> None:
        self.quality, self.noise, self.rng = quality.double(), noise, np.random.default_rng(seed)
        self.samples = 0

    def descents(self, rows: Tensor | Sequence[Tensor]) -> Tensor:
        return self.fresh_descents(list(rows), 8).mean(dim=1)

    def fresh_descents(self, rows: Sequence[Tensor], samples: int) -> Tensor:
        self.samples += samples
        who = [round(1000 * float(row[1] / row[0])) for row in rows]
        each = self.noise / math.sqrt(max(1, samples // PARTS))
        return self.quality[who][:, None] + each * torch.from_numpy(self.rng.standard_normal((len(rows), PARTS)))

    def gradient(self, after: Tensor | None = None) -> Tensor:
        return torch.tensor([1.0, 0.0])


def kept_over(rule: zeno.Rule, oracles: Sequence[Noisy], rows: Tensor | None = None) -> tuple[Tensor, object]:
    """Who was kept at each step: [steps, m] bool, and the state at the end."""
    state, kept = None, []
    for oracle in oracles:
        result = rule(candidates() if rows is None else rows, oracle, state)
        state = result.state
        kept.append(result.kept)
    return torch.stack(kept), state


def one_good(good: int = 7, good_score: float = 1.0, bad_score: float = 0.0) -> Tensor:
    quality = torch.full((M,), bad_score)
    quality[good] = good_score
    return quality


def test_ranks_are_by_hand() -> None:
    descents = torch.tensor([[4.0], [3.0], [-9.0], [3.0]])  # the last is a copy of the second
    norms = torch.tensor([1.0, 2.0, 3.0, 2.0], dtype=torch.float64)
    asked = torch.ones(4, dtype=torch.bool)
    after = judge(Standing.of(None, 4), descents.double(), norms, asked, fade=0.5, trim=2, rho=0.0).after
    # The best score is 4. Above the second by 1/4, above the third by more than half; the copy does not count.
    expected = [(0.25 + 0.5) / 2, (-0.25 + 0.5) / 2, -0.5, (-0.25 + 0.5) / 2]
    torch.testing.assert_close(after.mean, torch.tensor(expected, dtype=torch.float64))
    again = judge(after, descents.double().flip(0), norms.flip(0), asked, fade=0.5, trim=2, rho=0.0).after
    torch.testing.assert_close(again.mean[2], torch.tensor((0.5 * -0.5 + (-0.25 + 0.5) / 2) / 1.5, dtype=torch.float64))


def test_memory_finds_the_one_good_worker_that_one_step_cannot() -> None:
    def kept(memory: float) -> Tensor:
        oracles = [Noisy(one_good(), noise=4.0, seed=step) for step in range(100)]
        return kept_over(zeno.ZenoAuto(trim=19, rho=0.0, batch_size=8, memory=memory, warm_up=0), oracles)[0]

    assert kept(0.0)[40:, 7].float().mean() < 0.5
    assert kept(0.95)[40:, 7].float().mean() > 0.9
    assert (kept(0.95).sum(dim=1) == 1).all()


def test_memory_is_no_worse_where_other_workers_are_faulty_at_every_step() -> None:
    def bad_kept(memory: float) -> tuple[int, int]:
        rng, oracles = np.random.default_rng(3), []
        for step in range(200):
            quality = torch.ones(M)
            quality[rng.permutation(M)[:12]] = -1.0
            oracles.append(Noisy(quality, noise=4.0, seed=step))
        kept, _ = kept_over(zeno.ZenoAuto(trim=12, rho=0.0, batch_size=8, memory=memory, warm_up=0), oracles)
        bad = [int((row & (oracle.quality < 0)).sum()) for row, oracle in zip(kept, oracles, strict=True)]
        return sum(bad[:20]), sum(bad[20:])

    (first, then), (first_remembered, then_remembered) = bad_kept(0.0), bad_kept(0.95)
    assert then < 0.35 * 180 * 8  # chance is 0.6
    assert then_remembered <= 1.03 * then
    assert first_remembered <= first + 20  # the first steps find out that the past says nothing


def test_a_worker_that_turns_is_out_at_once_whatever_it_was_before() -> None:
    quality = torch.where(torch.arange(M) < 10, 1.0, -1.0)
    turned = quality.clone()
    turned[3] = -3.0
    for rule in (zeno.ZenoAuto(trim=12, rho=0.0, batch_size=16, memory=0.95, warm_up=0), zeno.ZenoAuto()):
        oracles = [Noisy(quality if s < 200 else turned, noise=1.0, seed=s) for s in range(210)]
        kept, _ = kept_over(rule, oracles)
        assert kept[100:200, 3].float().mean() > 0.5
        assert not kept[201:, 3].any()


def test_a_worker_that_is_mended_comes_back() -> None:
    quality = torch.ones(M)
    broken = quality.clone()
    broken[3] = -3.0
    oracles = [Noisy(broken if s < 100 else quality, noise=1.0, seed=s) for s in range(220)]
    kept, _ = kept_over(zeno.ZenoAuto(memory=0.95, warm_up=0), oracles)
    assert not kept[5:100, 3].any()
    assert kept[200:, 3].float().mean() > 0.5


def test_a_worker_that_sends_nothing_keeps_its_standing() -> None:
    rule, rows, state = zeno.ZenoAuto(), candidates(), None
    for step in range(20):
        state = rule(rows, Noisy(one_good(), 0.5, step), state).state
    before = Standing.of(state, M).mean
    rows[7] = torch.nan
    result = rule(rows, Noisy(one_good(), 0.5, 20), state)
    assert not result.kept[7]
    assert Standing.of(result.state, M).mean[7] == before[7]
    assert rule(candidates(), Noisy(one_good(), 0.5, 21), result.state).kept[7]


@pytest.mark.parametrize("faulty", [0, 4, 8, 12, 16, 19])
def test_nobody_has_to_say_how_many_are_faulty(faulty: int) -> None:
    quality = torch.where(torch.arange(M) < faulty, -1.0, 1.0)
    kept, _ = kept_over(zeno.ZenoAuto(), [Noisy(quality, noise=2.0, seed=s) for s in range(100)])
    assert kept[20:, :faulty].float().sum() <= 0.02 * 80 * M
    assert kept[20:, faulty:].float().mean() > 0.4  # those that stand close to the best
    assert kept[20:, faulty:].any(dim=1).all()


def test_the_server_goes_its_own_way_until_it_knows_its_workers() -> None:
    rule, state = zeno.ZenoAuto(warm_up=12), None
    for step in range(14):
        result = rule(candidates(), Noisy(one_good(bad_score=-1.0), noise=2.0, seed=step), state)
        state = result.state
        if step < 12:
            assert not result.kept.any()
            assert result.update.tolist() == [1.0, 0.0]  # its own gradient
        else:
            assert result.kept.nonzero().flatten().tolist() == [7]
            torch.testing.assert_close(result.update, candidates()[7])


def test_copies_count_once() -> None:
    rows = torch.tensor([[1.0, 0.0], [3.0, 2.0], [3.0, 2.0], [3.0, 2.0]])

    class Exact(Noisy):
        def fresh_descents(self, rows: Sequence[Tensor], samples: int) -> Tensor:
            return torch.stack([row[0] - row[0] / 10 + torch.arange(PARTS) / 1e3 for row in rows]).double()

    result = zeno.ZenoAuto(rho=0.0, batch_size=8, memory=0.0, warm_up=0)(rows, Exact(torch.zeros(4), 0.0))
    assert result.kept.tolist() == [False, True, True, True]
    assert result.weights.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    assert result.update.tolist() == [3.0, 2.0]
    near = torch.tensor([[2.9, 2.0], [3.0, 2.0], [3.0, 2.0], [3.0, 2.0]])
    result = zeno.ZenoAuto(rho=0.0, batch_size=8, memory=0.0, warm_up=0)(near, Exact(torch.zeros(4), 0.0))
    assert result.weights.tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    torch.testing.assert_close(result.update, torch.tensor([2.95, 2.0]))


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_auto_means_the_same_for_any_scale(size: float) -> None:
    """Losses in another unit, or parameters in another, change nothing of who is kept."""
    rng = np.random.default_rng(0)
    norms = torch.from_numpy(rng.uniform(0.5, 3.0, M))
    descents = torch.from_numpy(rng.normal(0.2, 1.0, (M, PARTS)))
    asked = torch.ones(M, dtype=torch.bool)
    start = Standing.of(None, M)

    def kept(of_losses: float, of_norms: float) -> list[bool]:
        before = Standing(**{**vars(start), "size": 2.0 * of_norms})
        return judge(before, descents * of_losses, norms * of_norms, asked, 0.9, None, None).kept.tolist()

    assert kept(1.0, 1.0) == kept(size, 1.0) == kept(1.0, size)
    assert 0 < sum(kept(1.0, 1.0)) < M


@pytest.mark.parametrize("scale", [10.0, 1e6, 1e18])
def test_what_is_far_larger_than_the_servers_own_gradient_is_not_believed(scale: float) -> None:
    rows = candidates([scale] * 19 + [1.0])
    quality = torch.cat([torch.full((19,), 5.0), torch.ones(1)])  # the samples happen not to show it
    kept, _ = kept_over(zeno.ZenoAuto(warm_up=0), [Noisy(quality, 0.1, s) for s in range(5)], rows)
    assert not kept[:, :19].any()
    assert kept[:, 19].all()
    kept, _ = kept_over(zeno.Zeno(trim=19, rho=0.0, batch_size=8), [Noisy(quality, 0.1)], rows)
    assert kept[0, :19].any()  # a rule without the penalty falls for it


def test_a_huge_candidate_is_out_also_while_the_good_one_is_not_scored() -> None:
    """Nineteen that behave for a while, and then all send something huge at the steps at which they alone are asked."""
    rule, state = zeno.ZenoAuto(warm_up=0), None
    for step in range(80):
        huge = step >= 40 and step % 2 == 0
        rows = candidates([300.0 if huge else 1.0] * 19 + [1.0])
        quality = one_good(19, 1.0, 1.2 if step < 40 else -1.0)
        result = rule(rows, Noisy(quality, 0.5, step), state)
        assert not (huge and result.kept[:19].any())
        assert result.update.norm() < 2
        state = result.state


def test_samples_are_spent_while_it_is_unclear_who_is_good() -> None:
    rule, state, used = zeno.ZenoAuto(warm_up=0), None, []
    for step in range(120):
        oracle = Noisy(one_good(bad_score=-1.0), noise=6.0, seed=step)
        result = rule(candidates(), oracle, state)
        assert result.samples == oracle.samples <= MOST
        state = result.state
        assert result.scores is not None
        used.append(oracle.samples * int(result.scores.isfinite().sum()))
    assert max(used[:10]) > RATE * M  # more than its share at first
    assert sum(used) <= (120 + CREDIT) * RATE * M
    easy = [Noisy(one_good(bad_score=-1.0), noise=0.01, seed=s) for s in range(3)]
    kept_over(rule, easy)
    assert [oracle.samples for oracle in easy] == [RATE] * 3  # and no more where it is clear


def test_an_oracle_in_parts_averages_to_the_whole() -> None:
    problem = zeno.Problem(torch.nn.Linear(3, 2))
    batch = zeno.Batch(torch.randn(16, 3), torch.randint(2, (16,)))
    rows, x = torch.randn(4, problem.size), problem.flat.clone()
    oracle = problem.at(x, 0.1, batch)
    parts = oracle.descents_in_parts(rows, 8)
    assert parts.shape == (4, 8)
    torch.testing.assert_close(parts.mean(dim=1), oracle.descents(rows))
    alone = problem.at(x, 0.1, zeno.Batch(batch.inputs[2:4], batch.targets[2:4])).descents(rows)
    torch.testing.assert_close(parts[:, 1], alone)


def test_a_run_records_standings_and_samples_and_goes_on_from_a_checkpoint(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "run"
    run = from_settings({"workers": 6, "faulty": 4, "steps": 30, "eval_every": 30})
    assert run.rule == zeno.ZenoAuto()
    whole = zeno.train(run)
    assert whole[-1].standing is not None
    assert whole[-1].standing[5] > max(whole[-1].standing[:4])
    assert whole[0].samples is not None

    class Enough(Exception):  # noqa: N818
        pass

    def stop(record: zeno.Record) -> None:
        if record.step == 23:
            raise Enough

    with pytest.raises(Enough):
        zeno.train(run, folder, stop)
    assert zeno.train(run, folder, resume=True) == whole


def fixed_oracle() -> zeno.Oracle:
    """What a Problem says on the samples that it was given: it cannot draw others."""
    problem = zeno.Problem(torch.nn.Linear(2, 1, bias=False), torch.nn.functional.mse_loss)
    return problem.at(torch.zeros(2), 0.1, zeno.Batch(torch.randn(4, 2), torch.randn(4, 1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: zeno.ZenoAuto(trim="all"), "trim as 'auto' or a whole number"),
        (lambda: zeno.ZenoAuto(trim=1, memory=1.0), "memory as a number of at least 0 and below 1"),
        (lambda: zeno.ZenoAuto(trim=1, batch_size="many"), "batch_size as 'auto' or a whole number"),
        (lambda: zeno.ZenoAuto(trim=1, score="first_order"), "number of samples"),
        (lambda: zeno.ZenoAuto()(candidates(), None), "needs an oracle"),
        (lambda: zeno.ZenoAuto()(candidates(), fixed_oracle()), "asks for 16 fresh samples. Found an oracle of 4"),
        (
            lambda: zeno.ZenoAuto()(candidates()[:5], Noisy(torch.ones(M), 1.0), vars(Standing.of(None, 6))),
            "not fit 5",
        ),
        (lambda: zeno.chain(zeno.NNM(2), zeno.ZenoAuto())(candidates(), Noisy(torch.ones(M), 1.0)), "as received"),
        (lambda: zeno.Arrivals(zeno.ZenoAuto(), 5, Noisy(torch.ones(M), 1.0)), "type Zeno"),  # type: ignore[arg-type]
        (lambda: zeno.ZenoAuto()(candidates() * torch.nan, Noisy(torch.ones(M), 1.0)), "needs 1 usable"),
    ],
)
def test_wrong_use_raises(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_with_a_number_to_keep_as_many_are_asked_as_there_are() -> None:
    """Who is not asked cannot be kept: of few that are usable, none may be left out for economy."""
    ranks = torch.linspace(1, 0, 12, dtype=torch.float64)  # all is clear, and worker 0 stands best
    nobody = torch.zeros(12, dtype=torch.bool)
    known = Standing(50 * ranks, 50 * torch.ones(12), 50 * torch.ones(12), nobody, 1.0, 1.0, 1.0, 1.0, 1.0, steps=100)
    usable = nobody.clone()
    usable[[7, 8, 9, 10]] = True
    assert int(known.asked(usable).sum()) == 2, "every second one, in turn"
    assert known.asked(usable, least=2).tolist() == known.asked(usable).tolist()
    assert known.asked(usable, least=4).tolist() == usable.tolist()
