"""TRL's trainers on a tiny model: pairs as computed by hand, the papers' fixed temperatures, parts, resuming."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("trl")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]

import trl_preferences as example  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import LlamaForSequenceClassification, TrainerCallback  # noqa: E402
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig  # noqa: E402
from trl.experimental.cpo import CPOConfig, CPOTrainer  # noqa: E402
from trl_trainers import (  # noqa: E402
    RobustDPOTrainer,
    RobustPairs,
    RobustSFTTrainer,
    fixed_temperature,
)

from equality import assert_identical  # noqa: E402
from killing import kill_after_a_checkpoint  # noqa: E402
from scdro import KLRobustLoss, worst_case  # noqa: E402
from scdro.errors import CheckpointError, ClosureError, HyperparameterError  # noqa: E402
from scdro.integrations.loggers import JSONLinesLogger, read_json_lines  # noqa: E402
from scdro.temperature import WindowTemperature  # noqa: E402

QUIET = {
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "bf16": False,
    "save_strategy": "no",
}
BETA = 0.3


class RobustCPOTrainer(RobustPairs, CPOTrainer):
    pass


def moved(seed=7):
    """A model that is not its reference."""
    model = example.language_model()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.double()


def dpo(tmp_path, robust, model=None, kind=RobustDPOTrainer, n=16, **settings):
    only_ours = (
        {}
        if kind is DPOTrainer
        else {"robust": robust, "best_case": settings.pop("best_case", False)}
    )
    arguments = {
        "beta": BETA,
        "per_device_train_batch_size": n,
        "max_steps": 1,
        "learning_rate": 0.1,
        "optim": "sgd",
    }
    return kind(
        model or moved(),
        ref_model=example.language_model().double(),
        args=DPOConfig(str(tmp_path), **{**arguments, **QUIET, **settings}),
        train_dataset=example.pairs(4 * n),
        processing_class=example.tokenizer(),
        **only_ours,
    )


def log_probabilities(model, ids, counts):
    """Of each row's tokens that count, from logits."""
    logits = model(input_ids=ids).logits.log_softmax(-1)[:, :-1]
    return (logits.gather(-1, ids[:, 1:, None])[..., 0] * counts[:, 1:]).sum(1)


def by_hand(model, reference, batch):
    """DPO's loss of each pair."""
    own = log_probabilities(model, batch["input_ids"], batch["completion_mask"])
    with torch.no_grad():
        given = log_probabilities(reference, batch["input_ids"], batch["completion_mask"])
    chosen, rejected = (own - given).chunk(2)
    return -F.logsigmoid(BETA * (chosen - rejected))


def first_batch(trainer):
    return next(iter(trainer.get_train_dataloader()))


def gradient_of(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def started(trainer):
    """As in the first training step, without training."""
    trainer.create_optimizer()
    trainer.callback_handler.optimizer = trainer.optimizer
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    return trainer


def test_evaluation_is_the_exact_worst_case_of_the_pairs(tmp_path):
    trainer = dpo(tmp_path, KLRobustLoss(rho=0.5))
    batch = first_batch(trainer)
    losses = by_hand(trainer.model, trainer.ref_model, batch)
    assert losses.std() > 0.1
    with torch.no_grad():
        value = trainer.compute_loss(trainer.model, batch)
    torch.testing.assert_close(
        value.double(), worst_case(losses.detach(), 0.5).value, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("t", [0.1, 2.0])
@pytest.mark.parametrize("paper", ["KLDPO", "Dr.DPO"])
def test_fixed_temperatures_are_the_papers(paper, t, tmp_path):
    trainer = started(dpo(tmp_path, fixed_temperature(t), best_case=paper == "Dr.DPO"))
    batch = first_batch(trainer)
    losses = by_hand(trainer.model, trainer.ref_model, batch)
    if paper == "KLDPO":  # the worst-case kernel of its Algorithm 2, and a loss weighted by it
        kernel = torch.exp((losses - losses.mean()).detach() / t)
        theirs = (kernel / kernel.sum() * losses).sum()
        value = t * (losses / t).exp().mean().log()
    else:
        theirs = value = -t * torch.log(torch.mean(torch.exp(-losses / t)))
    expected = gradient_of(trainer.model, theirs)
    ours = trainer.compute_loss(trainer.model, batch)
    torch.testing.assert_close(ours.double(), value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        gradient_of(trainer.model, ours), expected, rtol=1e-4, atol=1e-5 * expected.norm().item()
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "ipo"},
        {"loss_type": ["sigmoid", "hinge"], "loss_weights": [0.7, 0.3]},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},  # averages tokens too
        {"loss_type": "sigmoid", "f_divergence_type": "js_divergence"},
        {"loss_type": "apo_zero", "use_weighting": True},
    ],
    ids=str,
)
def test_every_loss_of_trl_without_radius_is_trl_s_own(settings, tmp_path):
    plain = dpo(tmp_path, None, kind=DPOTrainer, **settings)
    ours = started(dpo(tmp_path, KLRobustLoss(rho=0.0), **settings))
    batch = first_batch(ours)
    expected = gradient_of(plain.model, plain.compute_loss(plain.model, dict(batch)))
    value = ours.compute_loss(ours.model, dict(batch))
    torch.testing.assert_close(gradient_of(ours.model, value), expected, rtol=1e-5, atol=1e-6)


def in_order(monkeypatch, *kinds):
    for kind in kinds:
        monkeypatch.setattr(
            kind, "_get_train_sampler", lambda self, *_: SequentialSampler(self.train_dataset)
        )


def state_of(trainer):
    return {**trainer.model.state_dict(), "lam": trainer.robust_loss.robust.lam}


def robust_loss():
    return KLRobustLoss(0.5, temperature=WindowTemperature(initial=1.0))


def assert_near(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-6, msg=key)


def test_parts_equal_the_large_batch(tmp_path, monkeypatch):
    in_order(monkeypatch, RobustDPOTrainer)
    found = []
    for parts in (1, 4):
        sizes = {
            "per_device_train_batch_size": 16 // parts,
            "gradient_accumulation_steps": parts,
            "max_steps": 4,
        }
        trainer = dpo(tmp_path, robust_loss(), **sizes)
        trainer.train()
        found.append(state_of(trainer))
    assert abs(found[0]["lam"] - 1.0) > 0.1
    assert_near(*found)


def test_precomputed_reference_equals_the_reference(tmp_path, monkeypatch):
    in_order(monkeypatch, RobustDPOTrainer)
    found = []
    for precompute in (False, True):
        trainer = dpo(tmp_path, robust_loss(), precompute_ref_log_probs=precompute, max_steps=3)
        trainer.train()
        found.append(state_of(trainer))
    assert_near(*found)


def cpo(tmp_path, robust, **settings):
    arguments = {
        "loss_type": "simpo",
        "cpo_alpha": 0.0,
        "beta": BETA,
        "per_device_train_batch_size": 8,
    }
    return RobustCPOTrainer(
        moved(),
        args=CPOConfig(str(tmp_path), **{**arguments, "max_steps": 2, **QUIET, **settings}),
        train_dataset=example.pairs(32),
        processing_class=example.tokenizer(),
        robust=robust,
    )


def test_without_a_reference(tmp_path):
    trainer = cpo(tmp_path, KLRobustLoss(rho=0.5))
    batch = trainer._prepare_inputs(first_batch(trainer))
    with torch.no_grad():
        value = trainer.compute_loss(trainer.model, batch)
        chosen, rejected, *_ = trainer.concatenated_forward(trainer.model, batch)
        losses, *_ = trainer.cpo_loss(chosen, rejected)
    torch.testing.assert_close(
        value.double(), worst_case(losses.double(), 0.5).value, rtol=1e-5, atol=1e-6
    )
    trainer.train()
    assert math.isfinite(trainer.robust_loss.robust.lam)


class RobustRewardTrainer(RobustPairs, RewardTrainer):
    pass


def rewards(tmp_path, robust, **settings):
    config = example.language_model().config
    config.num_labels = 1
    torch.manual_seed(7)
    arguments = {"per_device_train_batch_size": 8, "max_steps": 2, **QUIET, **settings}
    return RobustRewardTrainer(
        LlamaForSequenceClassification(config),
        args=RewardConfig(str(tmp_path), **arguments),
        train_dataset=example.pairs(32),
        processing_class=example.tokenizer(),
        robust=robust,
    )


def test_reward_models(tmp_path):
    trainer = rewards(tmp_path, KLRobustLoss(rho=0.5))
    batch = first_batch(trainer)
    with torch.no_grad():
        value = trainer.compute_loss(trainer.model, dict(batch))
        chosen, rejected = trainer.model(**batch).logits[:, 0].double().chunk(2)
    expected = worst_case(-F.logsigmoid(chosen - rejected), 0.5).value
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
    trainer.train()
    assert math.isfinite(trainer.robust_loss.robust.lam)


def lora(tmp_path, steps=8, **settings):
    """Adapters; the reference is the model without them."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    sizes = {
        "per_device_train_batch_size": 8,
        "learning_rate": 0.1,
        "optim": "sgd",
        "max_steps": steps,
    }
    return RobustDPOTrainer(
        moved(),
        args=DPOConfig(str(tmp_path), beta=BETA, **{**sizes, **QUIET, **settings}),
        train_dataset=example.pairs(64),
        processing_class=example.tokenizer(),
        peft_config=peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        ),
        robust=robust_loss(),
    )


def test_adapters_are_trained_on_the_worst_case_and_resumed(tmp_path):
    whole = lora(tmp_path, save_strategy="steps", save_steps=4)
    before = {key: value.clone() for key, value in whole.model.state_dict().items()}
    whole.train()
    after = whole.model.state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    assert changed
    assert all("lora" in key for key in changed)
    batch = first_batch(whole)
    with torch.no_grad():
        value = whole.compute_loss(whole.model, dict(batch))
        own = log_probabilities(whole.model, batch["input_ids"], batch["completion_mask"])
        with whole.model.disable_adapter():
            given = log_probabilities(whole.model, batch["input_ids"], batch["completion_mask"])
    chosen, rejected = (own - given).chunk(2)
    losses = -F.logsigmoid(BETA * (chosen - rejected))
    assert losses.std() > 0.01
    torch.testing.assert_close(value.double(), worst_case(losses, 0.5).value, rtol=1e-5, atol=1e-6)
    resumed = lora(tmp_path / "again")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert_identical(state_of(resumed), state_of(whole))


def texts(n):
    words = example.pairs(n)
    longer = [
        f"{row['prompt']} {row['chosen']} {row['prompt']}" if i % 3 else row["prompt"]
        for i, row in enumerate(words)
    ]
    return Dataset.from_dict({"text": longer})


def sft(tmp_path, robust, **settings):
    arguments = {
        "per_device_train_batch_size": 16,
        "max_steps": 3,
        "learning_rate": 0.1,
        "optim": "sgd",
    }
    return RobustSFTTrainer(
        moved(),
        args=SFTConfig(str(tmp_path), **{**arguments, **QUIET, **settings}),
        train_dataset=texts(64),
        processing_class=example.tokenizer(),
        robust=robust,
    )


def test_sequences(tmp_path, monkeypatch):
    in_order(monkeypatch, RobustSFTTrainer)
    found = []
    for parts in (1, 4):
        sizes = {"per_device_train_batch_size": 16 // parts, "gradient_accumulation_steps": parts}
        trainer = sft(tmp_path, robust_loss(), **sizes)
        if parts == 1:
            batch = first_batch(trainer)
            counts = (batch["labels"] != -100).double()
            assert len(counts.sum(1).unique()) > 1
            losses = -log_probabilities(trainer.model, batch["input_ids"], counts) / counts[
                :, 1:
            ].sum(1)
            with torch.no_grad():
                value = trainer.compute_loss(trainer.model, dict(batch))
            torch.testing.assert_close(
                value.double(), worst_case(losses.detach(), 0.5).value, rtol=1e-5, atol=1e-6
            )
        trainer.train()
        found.append(state_of(trainer))
    assert_near(*found)


def test_logs_have_the_numbers_before_the_callbacks_see_them(tmp_path):
    seen = []

    class Before(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            seen.append(dict(logs))

    trainer = RobustDPOTrainer(
        moved(),
        ref_model=example.language_model().double(),
        args=DPOConfig(
            str(tmp_path / "run"),
            max_steps=2,
            logging_steps=1,
            per_device_train_batch_size=4,
            **QUIET,
        ),
        train_dataset=example.pairs(8),
        processing_class=example.tokenizer(),
        robust=KLRobustLoss(rho=0.5),
        callbacks=[Before()],
        loggers=[JSONLinesLogger(tmp_path / "log.jsonl")],
    )
    trainer.train()
    assert {"loss", "robust_lam", "robust_kl", "robust_ess"} <= seen[0].keys()
    records = read_json_lines(tmp_path / "log.jsonl")
    assert [r["step"] for r in records if "scalars" in r] == [1, 2]
    assert records[0]["scalars"]["robust_lam"] == pytest.approx(seen[0]["robust_lam"])
    assert sum(next(r for r in records if "histogram" in r)["counts"]) == 4


@pytest.mark.parametrize(
    ("make", "settings", "fact"),
    [
        (dpo, {"loss_type": "aot"}, "aot"),
        (dpo, {"loss_type": "sft"}, "sft"),
        (cpo, {"cpo_alpha": 1.0}, "cpo_alpha"),
        (rewards, {"center_rewards_coefficient": 0.1}, "center_rewards_coefficient"),
        (sft, {"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        (sft, {"packing": True}, "packing"),
    ],
)
def test_what_has_no_loss_per_sample_is_refused(make, settings, fact, tmp_path):
    with pytest.raises(HyperparameterError, match=fact):
        make(tmp_path, KLRobustLoss(rho=0.5), **settings).train()


def test_a_trainer_that_averages_otherwise_is_refused(tmp_path):
    class Other(RobustPairs, DPOTrainer):
        def _compute_loss(self, model, inputs, return_outputs):
            return model(input_ids=inputs["input_ids"]).logits.sum() / 7

    with pytest.raises(ClosureError, match="averages 1"):
        dpo(tmp_path, KLRobustLoss(rho=0.5), kind=Other).train()


@pytest.mark.parametrize("t", [0.0, -1.0, math.inf, math.nan])
def test_a_fixed_temperature_is_positive(t):
    with pytest.raises(HyperparameterError, match=r"t|temperature"):
        fixed_temperature(t)


def test_a_plain_checkpoint_is_refused(tmp_path):
    plain = dpo(tmp_path, None, kind=DPOTrainer, save_strategy="steps", save_steps=1)
    plain.train()
    with pytest.raises(CheckpointError, match="RobustTrainerLoss"):
        dpo(tmp_path, robust_loss(), max_steps=2).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-1")
        )


@pytest.mark.timeout(900)
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """Of the example itself, in processes of its own."""
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        str(root / "examples" / "trl_preferences.py"),
        "--steps",
        "24",
        "--save-steps",
        "6",
    ]
    settings = {
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    kill_after_a_checkpoint(
        [*command, "--out", killed], killed, 0.05, name="trainer_state.json", **settings
    )
    assert not (killed / "checkpoint-24").exists()
    subprocess.run([*command, "--out", killed, "--resume"], check=True, timeout=600, **settings)
    subprocess.run([*command, "--out", whole], check=True, timeout=600, **settings)
    for name in ("checkpoint-24/model.safetensors", "final/model.safetensors"):
        assert_identical(load_file(killed / name), load_file(whole / name))
    losses = [
        torch.load(folder / "checkpoint-24" / "optimizer.pt", weights_only=True)
        for folder in (killed, whole)
    ]
    assert_identical(*losses)
    states = [
        (folder / "checkpoint-24" / "trainer_state.json").read_text() for folder in (killed, whole)
    ]
    ours = [example.json.loads(text)["stateful_callbacks"]["RobustTrainerLoss"] for text in states]
    assert ours[0] == ours[1]
