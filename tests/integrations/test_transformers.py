"""Hugging Face's Trainer on tiny models from configurations: parts equal the whole, resumed equals uninterrupted."""

import copy
import json
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.integration

import transformers_trainer as example  # noqa: E402
from transformers import (  # noqa: E402
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

from equality import assert_identical  # noqa: E402
from scdro import KLRobustLoss, ScdroWarning, worst_case  # noqa: E402
from scdro.errors import CheckpointError, ClosureError, DataError, HyperparameterError  # noqa: E402
from scdro.functional import focal_loss  # noqa: E402
from scdro.integrations.loggers import JSONLinesLogger, read_json_lines  # noqa: E402
from scdro.integrations.transformers import (  # noqa: E402
    RobustTrainerLoss,
    language_model_losses,
    sequence_losses,
    token_losses,
)
from scdro.temperature import WindowTemperature  # noqa: E402

LENGTH = example.LENGTH


class Rows(torch.utils.data.Dataset):
    def __init__(self, labels):
        self.tokens = torch.randint(
            7, 20, (len(labels), LENGTH), generator=torch.Generator().manual_seed(0)
        )
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def generator():
    return torch.Generator().manual_seed(3)


def sequences(n):
    """A model in float64, data, and the loss of each sample."""
    return BertForSequenceClassification(example.tiny(num_labels=3)), torch.randint(
        3, (n,), generator=generator()
    )


def tokens(n):
    labels = torch.randint(4, (n, LENGTH), generator=generator())
    labels[torch.rand(n, LENGTH, generator=generator()) < 0.4] = -100
    labels[2] = -100  # A sequence without any token that counts.
    return BertForTokenClassification(example.tiny(num_labels=4)), labels


def text(n):
    config = GPT2Config(
        vocab_size=20,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    labels = torch.randint(20, (n, LENGTH), generator=generator())
    labels[torch.arange(LENGTH) >= torch.randint(4, LENGTH, (n, 1), generator=generator())] = -100
    return GPT2LMHeadModel(config), labels


TASKS = {
    "sequences": (sequences, sequence_losses),
    "tokens": (tokens, token_losses),
    "text": (text, language_model_losses),
}
EVERY_TASK = pytest.mark.parametrize("task", TASKS)


def robust_for(task):
    return RobustTrainerLoss(KLRobustLoss(0.5, temperature=WindowTemperature(0.6)), TASKS[task][1])


def trainer(task, out, n=22, *, robust=None, **settings):
    torch.manual_seed(0)
    model, labels = TASKS[task][0](n)
    robust = robust or robust_for(task)
    quiet = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    arguments = {"optim": "sgd", "learning_rate": 0.1, "num_train_epochs": 3, **quiet, **settings}
    data = Rows(labels)
    return Trainer(
        model.double(),
        TrainingArguments(str(out), **arguments),
        train_dataset=data,
        eval_dataset=data,
        compute_loss_func=robust,
        callbacks=[robust],
    )


@EVERY_TASK
def test_losses_are_those_of_the_model_on_each_sequence_alone(task):
    make, losses = TASKS[task]
    model, labels = make(6)
    model.double().eval()
    data = Rows(labels)
    with torch.no_grad():
        found = losses(model(input_ids=data.tokens), labels)
        values, mask = found if isinstance(found, tuple) else (found, None)
        alone = [
            float(model(input_ids=data.tokens[i : i + 1], labels=labels[i : i + 1]).loss)
            for i in range(6)
        ]
    for i, expected in enumerate(alone):
        if math.isnan(expected):
            assert not mask[i]
        else:
            assert float(values[i]) == pytest.approx(expected, rel=1e-5)
            assert mask is None or mask[i]


@pytest.mark.parametrize(
    ("outputs", "labels"),
    [(1, torch.tensor([0.5, -2.0, 3.0])), (2, torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))],
    ids=["regression", "several answers"],
)
def test_losses_of_numbers_and_of_several_answers_are_those_of_the_model(outputs, labels):
    torch.manual_seed(0)
    model, data = (
        BertForSequenceClassification(example.tiny(num_labels=outputs)).eval(),
        Rows(labels),
    )
    with torch.no_grad():
        found = sequence_losses(model(input_ids=data.tokens), labels)
        alone = [
            model(input_ids=data.tokens[i : i + 1], labels=labels[i : i + 1]).loss for i in range(3)
        ]
    torch.testing.assert_close(found, torch.stack(alone))


def test_a_sequence_with_the_label_minus_100_does_not_count():
    logits, labels = torch.randn(6, 3), torch.tensor([0, -100, 2, 1, -100, 2])
    with torch.no_grad():
        value = robust_for("sequences")({"logits": logits}, labels)
        counted = labels != -100
        expected = worst_case(
            F.cross_entropy(logits[counted], labels[counted], reduction="none").double(), 0.5
        ).value
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "outputs", "labels", "error", "fact"),
    [
        (sequence_losses, {"logits": torch.zeros(4, 3)}, None, DataError, "labels"),
        (sequence_losses, {"logits": torch.zeros(4, 3)}, torch.zeros(4), DataError, "float32"),
        (
            sequence_losses,
            {"logits": torch.zeros(4, 3)},
            torch.zeros(4, 9).long(),
            DataError,
            r"\(4, 9\)",
        ),
        (
            sequence_losses,
            {"logits": torch.zeros(4, 9, 3)},
            torch.zeros(4, 9).long(),
            ClosureError,
            "token_losses",
        ),
        (
            sequence_losses,
            {"scores": torch.zeros(4, 3)},
            torch.zeros(4).long(),
            ClosureError,
            "dict without",
        ),
        (sequence_losses, torch.zeros(4, 3), torch.zeros(4).long(), ClosureError, "Tensor without"),
        (
            sequence_losses,
            (torch.zeros(()), torch.zeros(4, 3)),
            torch.zeros(4).long(),
            ClosureError,
            r"shape \(\)",
        ),
        (
            token_losses,
            {"logits": torch.zeros(4, 3)},
            torch.zeros(4).long(),
            ClosureError,
            r"\(4, 3\)",
        ),
        (
            token_losses,
            {"logits": torch.zeros(4, 9, 3)},
            torch.zeros(4, 5).long(),
            DataError,
            r"\(4, 5\)",
        ),
        (
            language_model_losses,
            {"logits": torch.zeros(4, 9, 3)},
            torch.zeros(4).long(),
            DataError,
            r"\(4,\)",
        ),
    ],
)
def test_outputs_and_labels_that_do_not_fit_are_errors(losses, outputs, labels, error, fact):
    with torch.no_grad(), pytest.raises(error, match=fact):
        RobustTrainerLoss(KLRobustLoss(rho=0.5), losses)(outputs, labels)


def test_label_smoothing_which_the_trainer_would_ignore_is_an_error(tmp_path):
    with pytest.raises(HyperparameterError, match=r"label_smoothing_factor=0, got 0\.1"):
        trainer("sequences", tmp_path, label_smoothing_factor=0.1).train()


@EVERY_TASK
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulated_gradients_are_those_of_the_large_batch(task, parts, tmp_path):
    """22 samples in batches of 16: the second one is smaller, and so is its last part."""
    runs = [
        trainer(task, tmp_path, per_device_train_batch_size=16 // k, gradient_accumulation_steps=k)
        for k in (1, parts)
    ]
    for run in runs:
        run.train()
        assert run.state.global_step == 6
    for key, value in runs[0].model.state_dict().items():
        torch.testing.assert_close(value, runs[1].model.state_dict()[key], rtol=1e-10, atol=1e-12)
    logged = [
        [record["loss"] for record in run.state.log_history if "loss" in record] for run in runs
    ]
    assert logged[0] == pytest.approx(logged[1], rel=1e-4)
    states = [run.compute_loss_func.robust.state for run in runs]
    torch.testing.assert_close(states[0].scalars, states[1].scalars, rtol=1e-10, atol=1e-12)


def test_equals_a_plain_loop(tmp_path):
    run = trainer("sequences", tmp_path, n=32, per_device_train_batch_size=8, max_grad_norm=0.0)
    batches = []
    compute = run.compute_loss
    run.compute_loss = lambda model, inputs, **more: (
        batches.append(dict(inputs)),
        compute(model, inputs, **more),
    )[1]
    run.train()
    torch.manual_seed(0)
    model = sequences(32)[0].double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    robust = KLRobustLoss(0.5, temperature=WindowTemperature(0.6))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 12)
    for batch in batches:
        losses = torch.nn.functional.cross_entropy(
            model(batch["input_ids"]).logits, batch["labels"], reduction="none"
        )
        optimizer.zero_grad()
        robust(losses).backward()
        optimizer.step()
        schedule.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, run.model.state_dict()[key], rtol=1e-10, atol=1e-12)


def test_resumed_equals_uninterrupted(tmp_path):
    def run(out, steps, **settings):
        robust = RobustTrainerLoss(KLRobustLoss(0.5))
        return example.trainer(
            out,
            robust,
            steps,
            lr_scheduler_type="constant",
            gradient_accumulation_steps=2,
            save_steps=5,
            **settings,
        )

    whole = run(tmp_path / "whole", 10)
    whole.train()
    run(tmp_path / "part", 5).train()
    moved = (tmp_path / "part" / "checkpoint-5").rename(tmp_path / "elsewhere")
    resumed = run(tmp_path / "part", 10)
    resumed.train(resume_from_checkpoint=str(moved))
    assert_identical(whole.model.state_dict(), resumed.model.state_dict())
    assert_identical(
        whole.compute_loss_func.robust.state_dict(), resumed.compute_loss_func.robust.state_dict()
    )
    assert_identical(whole.optimizer.state_dict(), resumed.optimizer.state_dict())


def test_evaluation_gives_the_exact_value_and_changes_nothing(tmp_path):
    run = trainer("text", tmp_path, per_device_train_batch_size=8, per_device_eval_batch_size=22)
    run.train()
    robust = run.compute_loss_func.robust
    before = {key: value.clone() for key, value in robust.state_dict().items()}
    came = run.evaluate()["eval_loss"]
    assert_identical(before, robust.state_dict())
    model = run.model.eval()
    with torch.no_grad():
        labels = run.eval_dataset.labels
        outputs = model(input_ids=run.eval_dataset.tokens)
        losses, mask = language_model_losses(outputs, labels)
    assert mask.all()
    assert came == pytest.approx(float(worst_case(losses, 0.5).value), rel=1e-6)


def test_log_has_the_temperature(tmp_path):
    run = trainer("sequences", tmp_path, per_device_train_batch_size=8)
    run.train()
    steps = [record for record in run.state.log_history if "loss" in record]
    assert steps[-1]["robust_lam"] == float(run.compute_loss_func.robust.lam)
    assert {"robust_kl", "robust_ess", "robust_value"} < steps[-1].keys()


@pytest.mark.parametrize("added_later", [False, True])
def test_tensorboard_has_the_numbers_too(tmp_path, monkeypatch, added_later):
    """The Trainer calls its reporters first: they see only what is in the logs by then."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    run = trainer(
        "sequences", tmp_path, per_device_train_batch_size=8, report_to=["tensorboard"], max_steps=3
    )
    if added_later:
        robust = run.compute_loss_func
        run.remove_callback(robust)
        run.add_callback(robust)
    run.train()
    (events,) = (tmp_path / "board").rglob("events.out.tfevents*")
    board = event_accumulator.EventAccumulator(str(events.parent)).Reload()
    names = {name for name in board.Tags()["scalars"] if "robust_" in name}
    assert names == {f"train/robust_{what}" for what in ("lam", "kl", "ess", "value")}
    last = board.Scalars("train/robust_lam")[-1]
    assert last.step == 3
    assert last.value == pytest.approx(float(run.compute_loss_func.robust.lam), rel=1e-6)


def test_loss_without_its_callback_is_an_error(tmp_path):
    run = trainer("sequences", tmp_path)
    run.remove_callback(run.compute_loss_func)
    with pytest.raises(ClosureError, match="callbacks="):
        run.train()


def test_checkpoint_without_the_state_is_an_error(tmp_path):
    trainer("sequences", tmp_path, save_strategy="steps", save_steps=2).train()
    file = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(file.read_text())
    del state["stateful_callbacks"]["RobustTrainerLoss"]
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="made without"):
        trainer("sequences", tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_callback_without_its_loss_is_an_error(tmp_path):
    run = trainer("sequences", tmp_path)
    run.compute_loss_func = None
    with pytest.raises(ClosureError, match="compute_loss_func="):
        run.train()


def truncated(own):
    own["robust"] = own["robust"][:200]


def changed(own):
    text = own["robust"]
    own["robust"] = text[:900] + ("A" if text[900] != "A" else "B") + text[901:]


def unmarked(own):
    del own["sha256"]


@pytest.mark.parametrize("damage", [truncated, changed, unmarked])
def test_a_damaged_state_is_an_error(damage, tmp_path):
    trainer("sequences", tmp_path, save_strategy="steps", save_steps=2).train()
    file = tmp_path / "checkpoint-2" / "trainer_state.json"
    state = json.loads(file.read_text())
    damage(state["stateful_callbacks"]["RobustTrainerLoss"]["attributes"])
    file.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="damaged"):
        trainer("sequences", tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_one_loss_in_two_trainers_one_after_the_other(tmp_path):
    robust = robust_for("sequences")
    for _ in range(2):
        run = trainer("sequences", tmp_path, robust=robust, max_steps=2)
        run.train()
        assert run.state.global_step == 2


def test_a_step_that_was_skipped_leaves_no_share_behind():
    """As after an overflow: gradients are dropped, and no step is taken."""
    found = []
    for skipped in (False, True):
        torch.manual_seed(0)
        model, robust = torch.nn.Linear(4, 3).double(), robust_for("sequences")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        arguments = SimpleNamespace(
            world_size=1, average_tokens_across_devices=True, label_smoothing_factor=0.0
        )
        robust.on_train_begin(arguments, SimpleNamespace(global_step=0), None, optimizer=optimizer)
        x, y = torch.randn(8, 4).double(), torch.randint(3, (8,))
        if skipped:
            robust({"logits": model(x[:5])}, y[:5]).backward()
            model.zero_grad()
        value = robust({"logits": model(x)}, y)
        value.backward()
        found.append((value.detach(), model.weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=0)


def test_several_processes_must_not_average_tokens():
    arguments = SimpleNamespace(
        world_size=2, average_tokens_across_devices=True, label_smoothing_factor=0.0
    )
    model, robust = torch.nn.Linear(4, 3), robust_for("sequences")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust.on_train_begin(arguments, SimpleNamespace(global_step=0), None, optimizer=optimizer)
    with pytest.raises(HyperparameterError, match="average_tokens_across_devices=False"):
        robust({"logits": model(torch.zeros(2, 4))}, torch.zeros(2).long())


def told_by_training(folder, constant, bias):
    """The warnings of a training that changes nothing."""
    training = trainer("sequences", folder, max_steps=700, logging_steps=50, learning_rate=0.0)
    head = training.model.classifier
    torch.nn.init.normal_(head.weight, std=0.0 if constant else 1.0)
    head.bias.data.copy_(torch.tensor(bias))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.train()
    return [str(w.message) for w in caught if issubclass(w.category, ScdroWarning)]


@pytest.mark.parametrize(("constant", "times"), [(True, 1), (False, 0)])
def test_predictions_that_are_all_the_same_are_told_once(tmp_path, constant, times):
    """Unequal chances, so that no loss is near log 3."""
    told = told_by_training(tmp_path, constant, [1.0, 0.0, -1.0])
    assert len(told) == times
    assert all("the same one for every sequence" in message for message in told)


@pytest.mark.parametrize(("constant", "times"), [(True, 1), (False, 0)])
def test_losses_that_rest_at_log_k_are_told_once_on_an_accelerator(
    tmp_path, monkeypatch, constant, times
):
    """There the state itself does not look."""
    monkeypatch.setattr("scdro._state.CHECK_EVERY", 10**9)
    monkeypatch.setattr("scdro.integrations.transformers.host_reads", lambda tensor: False)
    told = told_by_training(tmp_path, constant, [0.0, 0.0, 0.0])
    assert sum("near log 3" in message for message in told) == times


# -- weights, classes, focal loss
# -------------------------------------------------------------------------------------

CLASS_WEIGHT = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)


def with_class_weights(outputs, labels):
    return sequence_losses(outputs, labels), CLASS_WEIGHT[labels]


def with_sample_weights(outputs, labels):
    """Labels in rows: the class, and the sample's weight."""
    return sequence_losses(outputs, labels[:, 0].long()), labels[:, 1]


def with_focal_loss(outputs, labels):
    return focal_loss(outputs["logits"], labels, gamma=2.0)


RECIPES = {
    "class weights": (with_class_weights, lambda z, y: F.cross_entropy(z, y, CLASS_WEIGHT)),
    "sample weights": (
        with_sample_weights,
        lambda z, y: (
            (F.cross_entropy(z, y[:, 0].long(), reduction="none") * y[:, 1]).sum() / y[:, 1].sum()
        ),
    ),
    "focal": (
        with_focal_loss,
        lambda z, y: ((1 - (p := z.softmax(1).gather(1, y[:, None])[:, 0])) ** 2 * -p.log()).mean(),
    ),
}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_without_radius_are_the_usual_losses(recipe, parts, tmp_path):
    """Against a loop of one's own over the same batches, also where gradients are accumulated."""
    losses, usual = RECIPES[recipe]
    torch.manual_seed(0)
    model, labels = sequences(16)
    if recipe == "sample weights":
        labels = torch.stack(
            [labels.double(), torch.rand(16, generator=generator(), dtype=torch.float64)], 1
        )
    data, twin = Rows(labels), copy.deepcopy(model).double()
    robust = RobustTrainerLoss(KLRobustLoss(rho=0.0), losses)
    quiet = {
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "max_grad_norm": 0.0,
    }
    sizes = {
        "per_device_train_batch_size": 16 // parts,
        "gradient_accumulation_steps": parts,
        "max_steps": 1,
    }
    arguments = TrainingArguments(str(tmp_path), optim="sgd", learning_rate=0.1, **quiet, **sizes)
    Trainer(
        model.double(), arguments, train_dataset=data, compute_loss_func=robust, callbacks=[robust]
    ).train()
    usual(twin(input_ids=data.tokens).logits, labels).backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    for key, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-9, atol=1e-11, msg=key)


def test_a_radius_instead_of_a_loss_is_an_error():
    with pytest.raises(HyperparameterError, match="KLRobustLoss"):
        RobustTrainerLoss(0.5)


def test_the_best_case_is_minus_the_worst_of_minus(tmp_path):
    losses = torch.tensor([0.1, 0.4, 2.0], dtype=torch.float64)
    with torch.no_grad():
        value = RobustTrainerLoss(KLRobustLoss(rho=0.3), best_case=True).objective(losses)
    assert float(value) == pytest.approx(-float(worst_case(-losses, 0.3).value), rel=1e-9)
    assert value < losses.mean()


def test_loggers_get_the_numbers(tmp_path):
    robust = RobustTrainerLoss(
        KLRobustLoss(rho=0.5), loggers=[JSONLinesLogger(tmp_path / "log.jsonl")]
    )
    run = trainer("sequences", tmp_path, robust=robust, max_steps=2, per_device_train_batch_size=8)
    run.train()
    records = read_json_lines(tmp_path / "log.jsonl")
    assert [record["step"] for record in records if "scalars" in record] == [1, 2]
    assert records[-2]["scalars"]["robust_lam"] == pytest.approx(float(robust.robust.lam))
    assert sum(records[-1]["counts"]) == 16
