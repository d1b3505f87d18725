"""The worker map."""

from dataclasses import replace
from typing import Any

import numpy as np

from support.four_workers import FIRST, RECORDS
from zeno.records.record import Record
from zeno.report.worker_map import WorkerMap


def colours_of(picture: WorkerMap, columns: int, rows: int = 4) -> "np.ndarray[Any, Any]":
    """[rows, columns, 3]: one pixel of each row and column; all pixels of a cell are equal."""
    image = picture.image()
    cells = image.reshape(rows, image.shape[0] // rows, columns, image.shape[1] // columns, 3)
    assert (cells == cells[:, :1, :, :1]).all()
    return cells[:, 0, :, 0]


def test_the_map_is_light_for_kept_and_dark_for_dropped_by_rank() -> None:
    picture = WorkerMap(4)
    for record in RECORDS:
        picture.add(record)
    red, blue = (217, 38, 38), (89, 128, 191)  # 255 * 0.85, and so on
    between = (128, 147, 178)  # 255 * (0.65 + 0.35) / 2, and so on
    shades: list[list[Any]] = [
        # Places 1, 2/3, 1/3 and 0: kept from 0.6 to 1, dropped from 0 to 0.4.
        [255, 153 + 68, 34, 0],
        # Worker 1 is best of three, and 3 worst.
        [153 + 51, 255, red, 0],
        [blue, blue, red, blue],
        # Nobody is kept, and there are no scores: place 0.5 from 0.3 to 1.
        [166, 166, 166, 166],
        # Worker 2 was not asked: half blue, half the shade before.
        [153 + 51, 51, between, 51],
    ]
    expected = [[(shade,) * 3 if isinstance(shade, int) else shade for shade in column] for column in shades]
    np.testing.assert_allclose(colours_of(picture, 5).transpose(1, 0, 2), np.array(expected), atol=1)  # of rounding


def test_candidates_without_a_score_are_the_darkest_and_ties_are_equal() -> None:
    picture = WorkerMap(4)
    picture.add(replace(FIRST, scores=[2.0, 2.0, None, 1.0]))
    assert colours_of(picture, 1)[:, 0, 0].tolist() == [255, 255, 0, 0]


def test_kept_candidates_are_darker_the_smaller_their_weight_is() -> None:
    picture = WorkerMap(4)
    picture.add(replace(FIRST, scores=None, kept=[True] * 4, weights=[0.5, 0.25, 0.05, -0.5]))
    # Place 0.5: kept 0.8, dropped 0.2. With shares of 1, 0.5, 0.1 and 0 in between.
    np.testing.assert_allclose(colours_of(picture, 1)[:, 0, 0], [204, 127.5, 66.3, 51], atol=0.5)


def test_equal_weights_look_as_records_without_weights() -> None:
    pictures = WorkerMap(4), WorkerMap(4)
    pictures[0].add(FIRST)
    pictures[1].add(replace(FIRST, weights=[0.5, 0.5, 0.0, 0.0]))
    assert np.array_equal(pictures[0].image(), pictures[1].image())


def test_the_server_has_a_row_if_updates_contain_its_gradient() -> None:
    picture = WorkerMap(4)
    picture.add(FIRST)
    assert not picture.has_server
    for record in (replace(FIRST, own=0.2), RECORDS[2], replace(FIRST, kept=[False] * 4, own=1.0)):
        picture.add(record)
    rows = colours_of(picture, 4, rows=5)
    assert rows[4].tolist() == [[0] * 3, [51] * 3, [89, 128, 191], [255] * 3], "none, 0.2, no update, all"


def test_a_long_map_stays_small_and_shows_means() -> None:
    picture = WorkerMap(2)
    one = Record(step=0, lr=0.1, kept=[True, False], scores=None)  # 0.8 and 0.2
    other = replace(one, kept=[False, True])
    for step in range(1000):
        picture.add(one if step % 2 else other)
    exact = colours_of(picture, 1000, rows=2)
    assert exact[:, :2, 0].tolist() == [[51, 204], [204, 51]]
    picture.add(one)
    halved = colours_of(picture, 501, rows=2)
    assert (halved[:, :500] == 128).all(), "two steps of a column, 0.2 and 0.8"
    assert halved[:, 500, 0].tolist() == [204, 51], "one step of a column"
    for _ in range(2999):
        picture.add(one)
    some = colours_of(picture, 1000, rows=2)[:, [0, 249, 250, 999], 0]
    assert some.tolist() == [[128, 128, 204, 204], [128, 128, 51, 51]]
    assert picture.image().shape[1] == 1000
