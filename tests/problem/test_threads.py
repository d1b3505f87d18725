"""Work side by side: everything is done once, with one torch thread, and nothing is left behind."""

import _thread
import itertools
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from zeno.problem.threads import Draws, one_thread, side_by_side


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("num_places", [1, 2, 5])
def test_every_job_is_done_once_and_a_place_has_one_at_a_time(num_places: int) -> None:
    busy = [threading.Lock() for _ in range(num_places)]

    def square(place: threading.Lock, job: int) -> int:
        assert place.acquire(blocking=False)
        assert torch.get_num_threads() == 1
        torch.rand(100, 100) @ torch.rand(100, 100)
        place.release()
        return job**2

    assert dict(side_by_side(square, busy, range(40))) == {job: job**2 for job in range(40)}
    assert torch.get_num_threads() == 2


def test_places_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=60)  # passed only by two at once
    done = side_by_side(lambda place, job: meeting.wait(), ["here", "there"], range(6))
    assert sorted(job for job, _ in done) == list(range(6))


@pytest.mark.parametrize("num_places", [1, 3])
def test_an_exception_reaches_the_caller_and_ends_the_rest(num_places: int) -> None:
    def fail(place: int, job: int) -> None:
        if job == 7:
            raise ZeroDivisionError("job 7")

    with pytest.raises(ZeroDivisionError, match="job 7"):
        list(side_by_side(fail, range(num_places), itertools.count()))
    assert torch.get_num_threads() == 2


def test_an_interrupt_ends_endless_work() -> None:
    def interrupt(place: int, job: int) -> None:
        if job == 5:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(interrupt, [0, 1], itertools.count()))
    assert torch.get_num_threads() == 2


def test_a_caller_that_stops_early_gets_the_threads_back() -> None:
    started = []
    for job, _ in side_by_side(lambda place, job: started.append(job), [0, 1], itertools.count()):
        if job == 3:
            break
    assert torch.get_num_threads() == 2
    assert len(started) < 12


def test_one_thread_restores_the_number_of_threads() -> None:
    def fail() -> None:
        with one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2


def drawn() -> list[Tensor]:
    """By functions that take a generator, and by such that do not."""
    dropout = nn.Dropout(0.5)(torch.ones(50))
    return [dropout, torch.rand(3), torch.empty(3).normal_(), torch.randperm(9), torch.rand_like(torch.ones(4))]


def test_draws_depend_on_the_seed_only_while_other_threads_draw() -> None:
    expected = []
    for seed in range(8):
        torch.manual_seed(seed)
        expected.append(drawn())
    torch.manual_seed(99)
    outside = torch.rand(3)
    torch.manual_seed(99)

    def draw(place: int, seed: int) -> list[Tensor]:
        with Draws(seed):
            return drawn()

    for seed, found in side_by_side(draw, range(4), range(8)):
        assert all(torch.equal(a, b) for a, b in zip(found, expected[seed], strict=True))
    assert torch.equal(torch.rand(3), outside)


def test_a_generator_of_the_caller_is_used() -> None:
    own = torch.Generator().manual_seed(3)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(3))
    with Draws(0):
        assert torch.equal(torch.rand(3, generator=own), expected)
