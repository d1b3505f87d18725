"""The usual lengths of the buckets of a rank."""

import math

USUAL = 10.0  # times its usual length: a bucket is too large
KNOWN, LENGTHS = 5, 50  # steps after which a usual length is known, and that it is a mean of


class Lengths:
    """The usual lengths of the buckets of this rank: decayed means."""

    def __init__(self) -> None:
        self._means: dict[tuple[int, int], tuple[float, int]] = {}  # by number and size: the mean, and of how many

    def is_usual(self, length: float, bucket: tuple[int, int]) -> bool:
        mean, count = self._means.get(bucket, (0.0, 0))
        if not math.isfinite(length) or (count >= KNOWN and length > USUAL * mean):
            return False
        self._means[bucket] = mean + (length - mean) / min(count + 1, LENGTHS), count + 1
        return True
