"""A plain PyTorch training loop in which 12 of 20 workers have flipped labels, without Zeno and with it.

    python examples/own_loop.py                     # both, one after the other
    python examples/own_loop.py --without           # only the plain loop, which fails
    python examples/own_loop.py --folder runs/mine  # then: zeno suspects runs/mine; zeno report runs/mine

Lines that end in `# -` belong to the plain loop, and lines that end in `# +` replace them. Everything else (the model,
the workers, the optimizer) stays the same.

Output (300 steps; 14 s of one core):

    12 of 20 workers are suspect: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 11. That is the majority: either they are faulty,
    or the rule trusts the wrong workers, or the model has diverged.
    accuracy without Zeno 1.7%, with Zeno 93.1%
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import zeno  # +

WORKERS, FAULTY = 20, 12  # workers 0 to 11 are faulty
torch.set_num_threads(1)  # the model is tiny

# 8x8 images of handwritten digits, as tensors. The server holds out 100 of them.
digits = zeno.load_task("digits")
pictures, labels = digits.train.batch(torch.arange(len(digits.train)))
test_pictures, test_labels = digits.test.batch(torch.arange(len(digits.test)))
own = TensorDataset(pictures[:100], labels[:100])  # +
pictures, labels = pictures[100:], labels[100:]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def gradient(model: nn.Module, worker: int) -> list[Tensor]:
    """What a worker sends: one tensor per parameter. In practice this runs on another machine."""
    rows = torch.randint(len(labels), (32,))
    targets = labels[rows] if worker >= FAULTY else 9 - labels[rows]
    loss = F.cross_entropy(model(pictures[rows]), targets)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(test_pictures).argmax(dim=1) == test_labels).float().mean())


def train(steps: int, with_zeno: bool, folder: str | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = DataLoader(own, batch_size=100, shuffle=True)  # +
    server = zeno.Server(model, F.cross_entropy, optimizer, samples, folder=folder)  # +
    for step in range(1, steps + 1):
        gradients = [gradient(model, worker) for worker in range(WORKERS)]
        if with_zeno:
            server.step(gradients)  # +
        else:
            for parameter, sent in zip(model.parameters(), zip(*gradients, strict=True), strict=True):  # -
                parameter.grad = torch.stack(sent).mean(dim=0)  # -
            optimizer.step()  # -
        if step % 60 == 0:
            print(f"  step {step:3}: accuracy {accuracy(model):.1%}", flush=True)
    if with_zeno:
        print(f"  {server.ledger}")  # +
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", action="store_true", help="run only the plain loop")
    parser.add_argument("--folder", help="folder for a record of every step")
    parser.add_argument("--small", action="store_true", help="fewer steps, for the tests")
    arguments = parser.parse_args()
    steps = 120 if arguments.small else 300

    print("without Zeno:")
    without = accuracy(train(steps, with_zeno=False))
    if arguments.without:
        raise SystemExit
    print("with Zeno:")
    print(f"accuracy without Zeno {without:.1%}, with Zeno {accuracy(train(steps, True, arguments.folder)):.1%}")
