"""The worst case over preference pairs in TRL's DPOTrainer: one argument more.

A tiny language model, created from a configuration, learns which of two answers is preferred. One
prompt in ten is of a rare kind, for which the other answer is preferred. After 20 steps plain DPO
knows the frequent kind only; the worst case also half of the rare one. (After 40 both know both.)
An interrupted run continues from its last checkpoint with the same result.

    python examples/trl_preferences.py
    python examples/trl_preferences.py --plain
    python examples/trl_preferences.py --resume
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded, nothing is sent

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer
from trl_trainers import RobustDPOTrainer  # type: ignore[import-not-found]  # the file beside this one

import scdro

WORDS = [f"w{i}" for i in range(12)]
RARE = 0.1


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, without a download."""
    words = ["<pad>", "<eos>", "<unk>", "rare", "often", "yes", "no", *WORDS]
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=32,
    )


def pairs(n: int, seed: int = 0) -> Dataset:
    """Prompts with "yes" preferred, and with "no" preferred in the rare kind."""
    rng = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        words = [WORDS[k] for k in torch.randint(len(WORDS), (3,), generator=rng).tolist()]
        rare = float(torch.rand((), generator=rng)) < RARE
        answers = [f" yes {words[0]}", f" no {words[0]}"]
        chosen, rejected = reversed(answers) if rare else answers
        rows.append(
            {
                "prompt": " ".join(["rare" if rare else "often", *words]),
                "chosen": chosen,
                "rejected": rejected,
            }
        )
    return Dataset.from_list(rows)


def language_model(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words), max_position_embeddings=32, pad_token_id=words.pad_token_id, **sizes
    )
    return LlamaForCausalLM(config)


def trainer(
    out: Path, robust: scdro.KLRobustLoss | None, steps: int, n: int = 800, **settings: Any
) -> DPOTrainer:
    """A DPOTrainer; plain DPO if `robust` is None."""
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "bf16": False}
    arguments = {
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 16,
        "logging_steps": 20,
        **quiet,
        **settings,
    }
    given = {
        "ref_model": language_model(),
        "args": DPOConfig(str(out), max_steps=steps, **arguments),
    }
    data = {"train_dataset": pairs(n), "processing_class": tokenizer()}
    if robust is None:
        return DPOTrainer(language_model(), **given, **data)
    return RobustDPOTrainer(language_model(), **given, **data, robust=robust)


def last_checkpoint(out: Path) -> str | None:
    """The newest checkpoint that is complete: a killed run may have left one that is not."""

    def complete(folder: Path) -> bool:
        try:
            return isinstance(json.loads((folder / "trainer_state.json").read_text()), dict)
        except (OSError, ValueError):
            return False

    folders = sorted(out.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    return next((str(folder) for folder in reversed(folders) if complete(folder)), None)


@torch.no_grad()
def share_preferred(model: LlamaForCausalLM, kind: str) -> float:
    """How often the model gives the right answer of the two, for prompts of a kind."""
    words = tokenizer()
    prompts = [f"{kind} {a} {b} {a}" for a in WORDS for b in WORDS]
    logits = model(**words(prompts, return_tensors="pt")).logits[:, -1]
    yes, no = words.convert_tokens_to_ids(["yes", "no"])
    return float(((logits[:, yes] > logits[:, no]) == (kind == "often")).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--rho", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("runs/trl"))
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last complete checkpoint in --out"
    )
    parser.add_argument("--plain", action="store_true", help="plain DPO instead")
    args = parser.parse_args()
    robust = None if args.plain else scdro.KLRobustLoss(rho=args.rho)
    run = trainer(args.out, robust, args.steps, save_steps=args.save_steps)
    run.train(resume_from_checkpoint=last_checkpoint(args.out) if args.resume else None)
    run.save_model(str(args.out / "final"))
    shares = [f"{kind} {share_preferred(run.model, kind):.3f}" for kind in ("often", "rare")]
    print("right answer of two: " + ", ".join(shares))


if __name__ == "__main__":
    main()
