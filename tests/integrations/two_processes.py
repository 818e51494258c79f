"""One of several processes under torchrun, or all in one: Lightning, Trainer, TRL and Accelerate on shared batches.

Run by `test_two_processes.py`. Everything is in float64 and without BatchNorm, so that two
processes can equal one.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import lightning_digits
import torch
import torch.nn.functional as F
import transformers_trainer
import trl_preferences
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from transformers import (
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)
from trl import DPOConfig
from trl_trainers import RobustDPOTrainer

import scdro
from scdro.data import Indexed
from scdro.distributed import RankBatches
from scdro.integrations.torchmetrics import GroupTable, RobustValue, WorstGroupAccuracy
from scdro.integrations.transformers import RobustTrainerLoss, sequence_losses, token_losses

BATCH, STEPS = 24, 8
IN_FLOAT32 = ("TRL", "TRL, parts", "torchmetrics")  # TRL's fused head computes log-probabilities so
PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def digits():
    x, y = lightning_digits.digits()
    return x[: BATCH * STEPS].double(), y[: BATCH * STEPS]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()


def temperature():
    return scdro.temperature.WindowTemperature(initial=1.0)


def with_lightning(kind, out):
    """Both loops of the example; the sampler gives each process its part of every batch."""
    x, y = digits()
    model = kind()
    model.network = network()
    if hasattr(model, "robust"):
        model.robust = scdro.KLRobustLoss(0.5, temperature=temperature())
    data = Indexed(TensorDataset(x, y))
    batches = BatchSampler(SequentialSampler(data), BATCH, drop_last=False)
    trainer = LightningTrainer(
        max_epochs=2,
        accelerator="cpu",
        strategy="ddp" if PROCESSES > 1 else "auto",
        devices=PROCESSES,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, LazyLoader(data, batches))
    lam = model.robust.lam if hasattr(model, "robust") else trainer.optimizers[0].lam
    return {**model.network.state_dict(), "lam": lam}


class Measured(LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()
        self.worst, self.value, self.table = WorstGroupAccuracy(5), RobustValue(0.5), GroupTable(5)

    def validation_step(self, batch, _):
        x, y, _ = batch
        scores = self.network(x)
        self.worst.update(scores, y, y % 5)
        self.table.update(scores, y, y % 5)
        self.value.update(F.cross_entropy(scores, y, reduction="none").float())
        self.log("worst", self.worst)
        self.log("value", self.value)

    def on_validation_epoch_end(self):
        self.log_dict(self.table.compute(), sync_dist=False)
        only_first = RobustValue(0.5)
        if self.global_rank == 0:  # the other process has no samples
            only_first.update(torch.arange(5.0))
        self.log("only the first", only_first.compute(), sync_dist=False)


def with_metrics():
    """torchmetrics in Lightning: `self.log` alone, the parts joined."""
    data = Indexed(TensorDataset(*digits()))
    batches = BatchSampler(SequentialSampler(data), BATCH, drop_last=False)
    trainer = LightningTrainer(
        accelerator="cpu",
        strategy="ddp" if PROCESSES > 1 else "auto",
        devices=PROCESSES,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    (found,) = trainer.validate(Measured(), LazyLoader(data, batches), verbose=False)
    return {key: torch.tensor(value) for key, value in found.items()}


class LazyLoader:
    """Cuts batches when it is asked for them: Lightning starts torch.distributed after the loader is made."""

    def __init__(self, data, batches):
        self.data, self.batches = data, batches

    def __iter__(self):
        return iter(DataLoader(self.data, batch_sampler=RankBatches(self.batches)))

    def __len__(self):
        return len(self.batches)


class Tokens(transformers_trainer.Sequences):
    """Labels of tokens; some sequences have none that counts, among them all of one process's part of a batch."""

    def __getitem__(self, i):
        tokens = super().__getitem__(i)["input_ids"]
        gone = i % BATCH < BATCH // 4 or i % 7 == 0
        return {
            "input_ids": tokens,
            "labels": torch.full_like(tokens, -100) if gone else tokens % 3,
        }


def with_masks(out):
    """Parts of two batches to a step: how many sequences count differs from part to part and process to process."""
    torch.manual_seed(0)
    model = BertForTokenClassification(transformers_trainer.tiny(num_labels=3)).double()
    return with_trainer(out, model, Tokens(BATCH * STEPS, seed=0), token_losses, parts=2)


def with_sequences(out):
    torch.manual_seed(0)
    model = transformers_trainer.BertForSequenceClassification(
        transformers_trainer.tiny(num_labels=2)
    ).double()
    return with_trainer(
        out, model, transformers_trainer.Sequences(BATCH * STEPS, seed=0), sequence_losses
    )


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def with_trainer(out, model, data, losses, parts=1):
    robust = RobustTrainerLoss(scdro.KLRobustLoss(0.5, temperature=temperature()), losses)
    arguments = TrainingArguments(
        str(out),
        max_steps=STEPS,
        gradient_accumulation_steps=parts,
        per_device_train_batch_size=BATCH // parts // PROCESSES,
        learning_rate=0.3,
        optim="sgd",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        average_tokens_across_devices=False,
        ddp_find_unused_parameters=False,
    )
    run = InOrder(
        model, arguments, train_dataset=data, compute_loss_func=robust, callbacks=[robust]
    )
    run.train()
    return {**run.model.state_dict(), "lam": robust.robust.lam}


def with_trl(out, parts=1):
    """Preference pairs; the reference model is in both processes."""
    words = trl_preferences.tokenizer()
    config = GPT2Config(
        vocab_size=len(words),
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=1,
        eos_token_id=1,
    )
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(GPT2LMHeadModel(config).double())
    run = InOrderPairs(
        models[0],
        ref_model=models[1],
        args=DPOConfig(
            str(out),
            max_steps=STEPS // parts,
            beta=1.0,
            gradient_accumulation_steps=parts,
            per_device_train_batch_size=BATCH // parts // PROCESSES,
            learning_rate=0.3,
            optim="sgd",
            bf16=False,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            gradient_checkpointing=False,
            ddp_find_unused_parameters=False,
        ),
        train_dataset=trl_preferences.pairs(BATCH * STEPS),
        processing_class=words,
        robust=scdro.KLRobustLoss(0.5, temperature=temperature()),
    )
    run.train()
    return {**run.model.state_dict(), "lam": run.robust_loss.robust.lam}


class InOrderPairs(RobustDPOTrainer):
    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def with_accelerate(out):
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    robust = scdro.KLRobustLoss(0.5, temperature=temperature()).attach(optimizer)
    loader = DataLoader(TensorDataset(*digits()), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(robust(F.cross_entropy(model(x), y, reduction="none")))
        optimizer.step()
        optimizer.zero_grad()
    return {**accelerator.unwrap_model(model).state_dict(), "lam": robust.lam}


def main(out):
    """All in one start: each leaves torch.distributed for the next as it found it."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = {
        "Trainer": with_sequences(out),
        "Trainer, masks": with_masks(out),
        "TRL": with_trl(out),
        "TRL, parts": with_trl(out, parts=2),
        "Accelerate": with_accelerate(out),
        "torchmetrics": with_metrics(),
        "Lightning": with_lightning(lightning_digits.RobustClassifier, out),
        "Lightning, ASCDRO": with_lightning(lightning_digits.ASCDROClassifier, out),
    }
    return {
        name: {key: value.detach().clone() for key, value in state.items()}
        for name, state in found.items()
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.save(main(folder), folder / f"{os.environ['RANK']}.pt")
