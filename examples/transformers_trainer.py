"""The worst case in Hugging Face's Trainer: two arguments change.

A tiny BERT, made from a configuration, learns to tell which of two tokens comes first; one kind of sequence is rare.

    python examples/transformers_trainer.py
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

FIRST, SECOND, LENGTH = 5, 6, 12


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens with one 5 and one 6 among them; class 1 where 5 comes first, which is one in ten."""

    def __init__(self, n: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(7, 20, (n, LENGTH), generator=rng)
        self.labels = (torch.rand(n, generator=rng) < 0.1).long()
        for row, label in zip(self.tokens, self.labels, strict=True):
            low, high = sorted(torch.randperm(LENGTH, generator=rng)[:2].tolist())
            row[low], row[high] = (FIRST, SECOND) if label else (SECOND, FIRST)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def tiny(**settings: Any) -> BertConfig:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(vocab_size=20, max_position_embeddings=LENGTH, **sizes, **off, **settings)


def trainer(out: Path, robust: RobustTrainerLoss, steps: int, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    arguments = {"learning_rate": 3e-3, "per_device_train_batch_size": 32, "logging_steps": 50, **quiet, **settings}
    return Trainer(
        BertForSequenceClassification(tiny(num_labels=2)),
        TrainingArguments(str(out), max_steps=steps, **arguments),
        train_dataset=Sequences(2000, seed=0),
        eval_dataset=Sequences(500, seed=1),
        compute_loss_func=robust,
        callbacks=[robust],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/transformers"))
    parser.add_argument("--resume", help="a checkpoint to continue from")
    args = parser.parse_args()
    run = trainer(args.out, RobustTrainerLoss(scdro.KLRobustLoss(rho=0.5)), args.steps, save_steps=100)
    run.train(resume_from_checkpoint=args.resume)
    answer = run.predict(run.eval_dataset)
    right = torch.tensor(answer.predictions.argmax(1) == answer.label_ids)
    rare = torch.tensor(answer.label_ids == 1)
    print(f"accuracy: frequent {right[~rare].float().mean():.3f}, rare {right[rare].float().mean():.3f}")


if __name__ == "__main__":
    main()
