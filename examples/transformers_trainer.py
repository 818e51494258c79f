"""The worst case in Hugging Face's Trainer: two arguments change.

A tiny BERT, created from a configuration, learns to distinguish two overlapping kinds of sequences,
one of them rare. Plain training assigns most ambiguous sequences to the frequent kind; the worst
case does not.

    python examples/transformers_trainer.py
    python examples/transformers_trainer.py --plain
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import scdro
from scdro.integrations.transformers import RobustTrainerLoss

MARK, LENGTH = 5, 12


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens. Each is a 5 with probability .4 in class 1 (one sample in ten), and .15 in class 0."""

    def __init__(self, n: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.labels = (torch.rand(n, generator=rng) < 0.1).long()
        marked = (
            torch.rand(n, LENGTH, generator=rng) < torch.where(self.labels == 1, 0.4, 0.15)[:, None]
        )
        self.tokens = torch.randint(6, 20, (n, LENGTH), generator=rng).masked_fill(marked, MARK)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def tiny(**settings: Any) -> BertConfig:
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(vocab_size=20, max_position_embeddings=LENGTH, **sizes, **off, **settings)


def trainer(
    out: Path, robust: RobustTrainerLoss | None, steps: int, seed: int = 0, **settings: Any
) -> Trainer:
    """A Trainer; plain training if `robust` is None."""
    torch.manual_seed(seed)
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    arguments = {
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 32,
        "logging_steps": 50,
        **quiet,
        **settings,
    }
    return Trainer(
        BertForSequenceClassification(tiny(num_labels=2)),
        TrainingArguments(str(out), max_steps=steps, seed=seed, **arguments),
        train_dataset=Sequences(2000, seed=2 * seed),
        eval_dataset=Sequences(2000, seed=2 * seed + 1),
        compute_loss_func=robust,
        callbacks=[] if robust is None else [robust],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/transformers"))
    parser.add_argument("--resume", help="a checkpoint to continue from")
    parser.add_argument("--plain", action="store_true", help="the mean loss instead")
    parser.add_argument("--seed", type=int, default=0, help="seed of data, weights and order")
    args = parser.parse_args()
    robust = None if args.plain else RobustTrainerLoss(scdro.KLRobustLoss(rho=0.5))
    run = trainer(args.out, robust, args.steps, args.seed, save_steps=100)
    run.train(resume_from_checkpoint=args.resume)
    answer = run.predict(run.eval_dataset)
    right = torch.tensor(answer.predictions.argmax(1) == answer.label_ids)
    rare = torch.tensor(answer.label_ids == 1)
    print(
        f"accuracy: frequent {right[~rare].float().mean():.3f}, rare"
        f" {right[rare].float().mean():.3f}"
    )


if __name__ == "__main__":
    main()
