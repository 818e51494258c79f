"""repair finds the head of networks as people have them: transformers' from configurations; timm's, torchvision's."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import scdro
from scdro.errors import HyperparameterError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
]

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
TEXT = {"vocab_size": 40, "num_labels": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 16, "patch_size": 8, "num_labels": 2}
TWO_STAGES = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 2}
HALF = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 2}

T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}

# The class without its ending, the settings, and the name of the head.
TEXTS = {
    "Bert": (SIZES, "classifier"),
    "Roberta": (SIZES, "classifier.out_proj"),
    "DistilBert": ({"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}, "classifier"),
    "Albert": ({**SIZES, "embedding_size": 16}, "classifier"),
    "Electra": ({**SIZES, "embedding_size": 16}, "classifier.out_proj"),
    "DebertaV2": (SIZES, "classifier"),
    "ModernBert": ({**SIZES, "cls_token_id": 1, "sep_token_id": 2}, "classifier"),
    "MPNet": (SIZES, "classifier.out_proj"),
    "Bart": ({**HALF, **HEADS}, "classification_head.out_proj"),
    "T5": ({**T5, "decoder_start_token_id": 0}, "classification_head.out_proj"),
    "MBart": ({**HALF, **HEADS}, "classification_head.out_proj"),
    "XLNet": ({"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16}, "logits_proj"),
    "Funnel": (
        {"d_model": 16, "block_sizes": [1], "n_head": 2, "d_head": 8, "d_inner": 16},
        "classifier.linear_out",
    ),
    "GPT2": ({"n_embd": 16, "n_layer": 1, "n_head": 2}, "score"),
    "Llama": (SIZES, "score"),
    "Qwen2": ({**SIZES, "num_key_value_heads": 2}, "score"),
}
IMAGES = {
    "ViT": ({**SIZES, **IMAGE}, "classifier"),
    "DeiT": ({**SIZES, **IMAGE}, "classifier"),
    "Beit": ({**SIZES, **IMAGE}, "classifier"),
    "Dinov2": ({**SIZES, **IMAGE}, "classifier"),
    "ConvNext": (
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "num_labels": 2},
        "classifier",
    ),
    "ResNet": (TWO_STAGES, "classifier.1"),
    "RegNet": ({**TWO_STAGES, "groups_width": 8}, "classifier.1"),
}
N = 100


def texts():
    """Two words, and two others, for the two labels."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 2
    words = torch.randint(3, 5, (N, 8), generator=rng) + 2 * y[:, None]
    return [
        {"input_ids": torch.cat([row, torch.tensor([2])]), "labels": label}
        for row, label in zip(words, y, strict=True)
    ]


def images(size=16):
    """The label decides how bright a picture is."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(N) % 2
    x = torch.randn(N, 3, size, size, generator=rng) + 2.0 * (y - 0.5)[:, None, None, None]
    return x, y


def check(model, loader, head):
    """A new head, and nothing but a new head, with which the network knows the labels."""
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few samples
        fixed = scdro.repair(model, loader, refuse=False, progress=False)
    new, given = fixed.model.state_dict(), model.state_dict()
    assert all(torch.equal(given[key], value) for key, value in before.items())
    changed = {key for key, value in new.items() if not torch.equal(value, before[key])}
    assert changed
    assert changed <= {f"{head}.weight", f"{head}.bias"}
    right = []
    with torch.no_grad():
        for batch in loader:
            inputs, y = (batch, batch.pop("labels")) if isinstance(batch, dict) else batch
            result = (
                fixed.model.eval()(**inputs)
                if isinstance(inputs, dict)
                else fixed.model.eval()(inputs)
            )
            right.append(getattr(result, "logits", result).argmax(1) == y)
    assert torch.cat(right).float().mean() > 0.9


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    transformers = pytest.importorskip("transformers")
    settings, head = TEXTS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**TEXT, **settings})
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    check(model, DataLoader(texts(), batch_size=40), head)


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    transformers = pytest.importorskip("transformers")
    settings, head = IMAGES[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForImageClassification")(
        getattr(transformers, f"{name}Config")(**settings)
    )
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(*images(), strict=True)]
    check(model, DataLoader(rows, batch_size=40), head)


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        ("BertForTokenClassification", r"shape \(40, 9, 2\)"),
        ("BertForMaskedLM", r"shape \(40, 9, 40\)"),
        ("BertModel", "pooler"),
    ],
)
def test_networks_without_one_row_of_scores_are_refused(kind, fact):
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)(transformers.BertConfig(**TEXT, **SIZES))
    with pytest.raises(HyperparameterError, match=fact):
        scdro.repair(model, DataLoader(texts(), batch_size=40), progress=False)


def test_heads_that_are_averaged_are_refused():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeiTConfig(**SIZES, **IMAGE)
    model = transformers.DeiTForImageClassificationWithTeacher(config)
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(*images(), strict=True)]
    with pytest.raises(HyperparameterError, match=r"distillation_classifier.*changed"):
        scdro.repair(model, DataLoader(rows, batch_size=40), progress=False)


def names(package, listed):
    return [
        pytest.param(package, name, head, id=f"{package}-{name}") for name, head in listed.items()
    ]


@pytest.mark.parametrize(
    ("package", "name", "head"),
    names(
        "timm",
        {"resnet10t": "fc", "mobilenetv3_small_050": "classifier", "convnext_atto": "head.fc"},
    )
    + names(
        "torchvision",
        {"resnet18": "fc", "mobilenet_v3_small": "classifier.3", "vit_b_16": "heads.head"},
    ),
)
def test_by_name(package, name, head):
    try:
        module = __import__(package)
    except (
        ImportError,
        RuntimeError,
    ) as error:  # a torchvision that does not fit torch raises RuntimeError
        pytest.skip(f"{package} cannot be imported here: {error}")
    torch.manual_seed(0)
    if package == "timm":
        model, size = module.create_model(name, num_classes=2), 64
    else:
        size = 64 if "vit" not in name else 32
        settings = {"image_size": 32} if "vit" in name else {}
        model = module.models.get_model(name, num_classes=2, **settings)
    check(model, DataLoader(torch.utils.data.TensorDataset(*images(size)), batch_size=40), head)
