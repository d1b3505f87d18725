"""A small GPT, trained with AdamW by 20 workers of which 19 are faulty, each in one of three ways.

    python examples/transformer.py           # four to five minutes
    python examples/transformer.py --small   # a smaller model for fewer steps: what the tests run

Workers 0 to 6 have a bug in their data loader: the target of each letter is the letter itself, not the next one.
Workers 7 to 12 use a different vocabulary, which numbers the letters in reverse. Workers 13 to 18 send their gradient
with the wrong sign. Worker 19 is good. Training on worker 19 alone is the reference; the mean of all 20 is plain
averaging.

examples/text.txt is prose about this project, as plain ASCII, with its paragraphs in random order. The workers train on
80 % of it, and the server scores on 10 %. The losses are on the last 10 %, which is not used for training.

Output (108,864 parameters, 250 steps; 247 s of one core):

    19 of 20 workers are suspect: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 and 18. That is [...]
    loss: good worker alone 2.083, Zeno 2.126, mean 141.102
    Zeno's model writes: [...] on wrat the mates ar thep workers is whits on on fore thame ate bed ow with ache [...]
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno

text = (Path(__file__).parent / "text.txt").read_text(encoding="ascii")
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])
workers_text, server_text, held_out = codes.split([len(codes) * 8 // 10, len(codes) // 10, math.ceil(len(codes) / 10)])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:  # [n, t, width]
        n, t, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(n, t, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [n, heads, t, width / heads] each
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.letter, self.place = nn.Embedding(len(letters), width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(letters), bias=False)
        self.out.weight = self.letter.weight  # tied
        nn.init.normal_(self.letter.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.05)

    def forward(self, inputs: Tensor) -> Tensor:  # [n, t] -> [n, t, letters]
        x = self.letter(inputs) + self.place.weight[: inputs.shape[1]]
        return self.out(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def batch(source: Tensor, size: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(source) - length, (size, 1), generator=torch.Generator().manual_seed(seed))
    rows = source[starts + torch.arange(length + 1)]  # [size, length + 1]
    return rows[:, :-1], rows[:, 1:]


def gradient(model: GPT, worker: int, step: int, size: int) -> Tensor:
    inputs, targets = batch(workers_text, size, model.length, seed=1000 * step + worker)
    if worker < 7:
        targets = inputs
    elif worker < 13:
        inputs, targets = len(letters) - 1 - inputs, len(letters) - 1 - targets
    model.zero_grad()
    loss_of(model(inputs), targets).backward()
    sent = zeno.flatten(model)
    return -sent if 13 <= worker < 19 else sent


@torch.no_grad()
def test_loss(model: GPT) -> float:
    inputs, targets = batch(held_out, 64, model.length, seed=0)
    return float(loss_of(model(inputs), targets))


@torch.no_grad()
def sample(model: GPT, start: str, size: int) -> str:
    rng, found = torch.Generator().manual_seed(0), [letters.index(letter) for letter in start]
    for _ in range(size):
        outputs = model(torch.tensor([found[-model.length :]]))[0, -1]
        found.append(int(torch.multinomial((outputs / 0.7).softmax(dim=0), 1, generator=rng)))
    return "".join(letters[code] for code in found)


def train(name: str, workers: range, rule: zeno.Rule, small: bool) -> tuple[GPT, zeno.Server]:
    torch.manual_seed(0)
    model = GPT(width=32, layers=1, heads=2, length=32) if small else GPT(width=64, layers=2, heads=4, length=64)
    steps, size = (50, 4) if small else (250, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    samples = [batch(server_text, 64, model.length, seed) for seed in range(20)]
    server = zeno.Server(model, loss_of, optimizer, samples, rule)
    for step in range(1, steps + 1):
        server.step([gradient(model, worker, step, size) for worker in workers])
        if step % (steps // 5) == 0:
            print(f"{name}, step {step:3}: loss {test_loss(model):.3f}", flush=True)
    return model, server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a smaller model for fewer steps, for the tests")
    small = parser.parse_args().small

    good, _ = train("the good worker alone", range(19, 20), zeno.Mean(), small)
    zenos, server = train("Zeno of all 20", range(20), zeno.ZenoAuto(samples=16), small)
    mean, _ = train("the mean of all 20", range(20), zeno.Mean(), small)
    print(server.ledger)
    print(f"loss: good worker alone {test_loss(good):.3f}, Zeno {test_loss(zenos):.3f}, mean {test_loss(mean):.3f}")
    print(f"The mean writes: {sample(mean, 'A worker ', size=60)!r}")
    print(f"Zeno's model writes: {sample(zenos, 'A worker ', size=60 if small else 300)!r}")
