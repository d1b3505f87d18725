"""`python -m benchmarks.scale --workers 1000 --parameters 1e9 --shards 250`: memory and bytes per step of a plan.

Nothing is measured here: the figures follow from counting. docs/performance.md explains the plan.

Shapes: m workers, d parameters, s shards, k numbers in a sketch.
"""

import argparse
from dataclasses import dataclass

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a number in a message
FLOAT32, FLOAT64 = 4, 8
HALVES = 2  # of the server's samples, with a gradient each
LAYOUTS = ("one server", "shards", "streaming shards", "guard")


@dataclass(frozen=True)
class Host:
    """What one host of a kind holds, and what it sends and receives per step, in bytes."""

    name: str
    count: int
    memory: int
    sent: int
    received: int

    def seconds(self, gigabits: float) -> float:
        """Of a link that sends and receives at once, at this speed; the time to compute is not in it."""
        return max(self.sent, self.received) * 8 / (gigabits * 1e9)


@dataclass(frozen=True)
class Plan:
    """A step with ZenoAuto, for m workers and d parameters."""

    workers: int  # m
    parameters: int  # d
    shards: int = 1  # s
    dtype: str = "bfloat16"  # of gradients and parameters in messages
    sketch: int = 16_384  # k
    optimizer_states: int = 1  # numbers that the optimizer keeps for a parameter: 1 momentum, 2 Adam
    in_flight: int = 8  # candidates that a streaming shard receives at once

    def __post_init__(self) -> None:
        for name in ("workers", "parameters", "shards", "sketch", "in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"A plan needs at least one of {name}. Found {getattr(self, name)}.")
        if self.optimizer_states < 0:
            raise ValueError(f"optimizer_states must not be negative. Found {self.optimizer_states}.")
        if self.shards > self.parameters:
            raise ValueError(f"A shard needs a parameter. Found {self.shards} shards of {self.parameters} parameters.")
        if self.dtype not in WIDTHS:
            raise ValueError(f"dtype must be one of {', '.join(WIDTHS)}. Found {self.dtype!r}.")

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def slice(self) -> int:
        """Parameters of the largest shard: d / s, rounded up."""
        return -(-self.parameters // self.shards)

    @property
    def sketches(self) -> int:
        """Bytes of the sketches of all workers and of the two halves [m + 2, k]."""
        return (self.workers + HALVES) * self.sketch * FLOAT32

    @property
    def judging(self) -> int:
        """Bytes of the choice of weights: the memory, then its means and this step in float64, and their products."""
        columns = self.workers + 3  # with the choice of the step, the server's own gradient and zero
        return self.sketches + 2 * columns * self.sketch * FLOAT64 + columns**2 * FLOAT64

    def state(self, parameters: int) -> int:
        """Bytes of parameters, optimizer, and update."""
        return parameters * FLOAT32 * (2 + self.optimizer_states)

    def hosts(self, layout: str) -> list[Host]:
        if layout == "one server":
            return self._one_server()
        if layout == "guard":
            return self._guard()
        if layout in ("shards", "streaming shards"):
            return self._shards(streaming=layout == "streaming shards")
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}. Found {layout!r}.")

    def _one_server(self) -> list[Host]:
        vector = self.width * self.parameters
        halves = HALVES * FLOAT32 * self.parameters
        memory = self.workers * vector + self.state(self.parameters) + halves + self.judging
        return [Host("server", 1, memory, self.workers * vector, self.workers * vector), self._worker()]

    def _shards(self, streaming: bool) -> list[Host]:
        part = self.width * self.slice
        halves = HALVES * FLOAT32 * self.slice
        held = min(self.in_flight, self.workers) if streaming else self.workers
        weights = FLOAT64 * (self.workers + 1)
        whole = HALVES * FLOAT32 * self.parameters
        return [
            Host(
                "shard",
                self.shards,
                held * part + self.state(self.slice) + halves + self.sketches,
                self.workers * part + part + self.sketches,  # parameters to the workers and the judge; sketches
                self.workers * part + halves + self.sketches + weights,  # a reduction passes on what it receives
            ),
            Host("coordinator", 1, self.judging, weights * self.shards, self.sketches),
            # The judge also holds its activations, which depend on the model.
            Host("judge", 1, FLOAT32 * self.parameters + whole, whole, self.width * self.parameters),
            self._worker(),
        ]

    def _guard(self) -> list[Host]:
        """Every rank has the model, sketches its own gradient, and takes part in a ring all-reduce with its weight."""
        ring = 2 * self.width * self.parameters * (self.workers - 1) // self.workers
        sent = ring + self.sketch * FLOAT32 * (self.workers - 1)  # an all-gather around the ring
        memory = self.state(self.parameters) + self.judging
        judge = HALVES * FLOAT32 * self.parameters
        return [
            Host("rank", self.workers - 1, memory, sent, sent),
            Host("rank with samples", 1, memory + judge, sent, sent),
        ]

    def _worker(self) -> Host:
        vector = self.width * self.parameters
        return Host("worker", self.workers, FLOAT32 * self.parameters + vector, vector, vector)


def readable(count: int) -> str:
    """A number of bytes with two digits or more, in powers of 1,000."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.{1 if count < 10 * size else 0}f} {unit}"
    return f"{count} B"


def table(plan: Plan, gigabits: float) -> str:
    """All layouts, as a table in Markdown."""
    lines = [
        f"| layout | host | hosts | memory of each | sent | received | seconds at {gigabits:g} Gbit/s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for layout in LAYOUTS:
        for host in plan.hosts(layout):
            bytes_of = " | ".join(map(readable, (host.memory, host.sent, host.received)))
            seconds = host.seconds(gigabits)
            shown = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
            lines.append(f"| {layout} | {host.name} | {host.count:,} | {bytes_of} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--workers", type=int, default=1000, help="m")
    parser.add_argument("--parameters", type=lambda text: int(float(text)), default=10**9, help="d, such as 1e9")
    parser.add_argument("--shards", type=int, default=250)
    parser.add_argument("--dtype", choices=WIDTHS, default="bfloat16", help="of numbers in messages")
    parser.add_argument("--sketch", type=int, default=16_384, help="k")
    parser.add_argument("--optimizer-states", type=int, default=1, help="1 for momentum, 2 for Adam")
    parser.add_argument("--gigabits", type=float, default=100.0, help="speed of a link, per second")
    given = vars(parser.parse_args())
    gigabits = given.pop("gigabits")
    try:
        print(table(Plan(**given), gigabits))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
