"""A small BERT from Hugging Face, trained with AdamW and a schedule by 8 workers of which 3 are faulty.

    pip install transformers
    python examples/hugging_face.py           # half a minute
    python examples/hugging_face.py --small   # fewer steps: what the tests run

The model tells plain text from text in ROT13, which moves each letter by 13 places. Worker 0 has the wrong labels, and
adds up the losses of its 16 texts where the others average. Worker 1 has bad memory: its gradients are NaN. Worker 2
sends nothing after step 20. Workers 3 to 7 are good. The mean leaves out what is missing or not finite.

A batch is what a tokenizer returns, a `BatchEncoding`, padded to its longest text. The model computes its own loss. So
the server gets a `loss(model, batch)`, and batches of different lengths.

Output (200 steps; 34 s of one core):

    3 of 8 workers are suspect: 0, 1 and 2.
    accuracy: mean 8.4%, Zeno 92.8%
"""

import argparse
import codecs
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LinearLR
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification

import zeno

WORKERS = 8
SHORTEST, LONGEST = 4, 12  # texts, in letters
torch.set_num_threads(1)  # the model is small

prose = (Path(__file__).parent / "text.txt").read_text(encoding="ascii")
letters = sorted({*prose, *codecs.encode(prose, "rot13")})
config = BertConfig(
    vocab_size=len(letters) + 1,  # 0 is padding
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LONGEST,
    initializer_range=0.1,
)


def batch(source: str, size: int, seed: int) -> BatchEncoding:
    """Texts from the source, about half of them in ROT13, with their labels."""
    rng = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(source) - LONGEST, (size,), generator=rng).tolist()
    lengths = torch.randint(SHORTEST, LONGEST + 1, (size,), generator=rng).tolist()
    labels = torch.randint(2, (size,), generator=rng)
    rows = []
    for start, length, label in zip(starts, lengths, labels.tolist(), strict=True):
        text = source[start : start + length]
        text = codecs.encode(text, "rot13") if label else text
        rows.append(torch.tensor([letters.index(letter) + 1 for letter in text]))
    ids = pad_sequence(rows, batch_first=True)  # [size, the longest of them]
    return BatchEncoding({"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels})


tenth = len(prose) // 10
workers_text, server_text, test_text = prose[: 8 * tenth], prose[8 * tenth : 9 * tenth], prose[9 * tenth :]
held_out = batch(test_text, size=500, seed=0)


def loss_of(model: BertForSequenceClassification, batch: BatchEncoding) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def gradient(model: BertForSequenceClassification, worker: int, step: int) -> Tensor | None:
    """What a worker sends. In practice this runs on another machine."""
    if worker == 2 and step > 20:
        return None
    own = batch(workers_text, size=16, seed=1000 * step + worker)
    if worker == 0:
        own["labels"] = 1 - own["labels"]
    loss = loss_of(model, own)
    model.zero_grad()
    (16 * loss if worker == 0 else loss).backward()
    sent = zeno.flatten(model)
    return sent.fill_(torch.nan) if worker == 1 else sent


@torch.no_grad()
def accuracy(model: BertForSequenceClassification) -> float:
    model.train(False)
    predicted = model(**held_out).logits.argmax(dim=1)
    model.train(True)
    return float((predicted == held_out["labels"]).float().mean())


def train(name: str, rule: zeno.Rule, steps: int) -> tuple[float, zeno.Server]:
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=steps)
    samples = [batch(server_text, size=32, seed=seed) for seed in range(20)]
    server = zeno.Server(model, loss_of, optimizer, samples, rule)
    for step in range(1, steps + 1):
        server.step([gradient(model, worker, step) for worker in range(WORKERS)])
        schedule.step()
        if step % (steps // 4) == 0:
            print(f"{name}, step {step:3}: accuracy {accuracy(model):.1%}", flush=True)
    return accuracy(model), server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer steps, for the tests")
    steps = 100 if parser.parse_args().small else 200

    mean, _ = train("the mean", zeno.Mean(), steps)
    with_zeno, server = train("Zeno", zeno.ZenoAuto(samples=32), steps)
    print(server.ledger)
    print(f"accuracy: mean {mean:.1%}, Zeno {with_zeno:.1%}")
