"""Model cards: what they must say, and that values of a table cannot change their form."""

import json
import re

import numpy as np
import pytest

import scdro
from scdro.errors import HyperparameterError


@pytest.fixture(scope="module")
def audit():
    rng = np.random.default_rng(0)
    age, city = rng.integers(18, 90, 6000), rng.choice(["Oslo", "Rome|Milan", "Lima"], 6000)
    p = rng.uniform(0.05, 0.6, 6000)
    y = rng.random(6000) < p + 0.25 * ((city == "Rome|Milan") & (age > 60))
    columns = {"age": age, "city": city, "noise": rng.random(6000)}
    return scdro.audit(y.astype(int), p, columns, sensitive_features={"city": city})


def header_of(card):
    """The lines of the header, and the rest."""
    _, header, rest = card.split("---\n", 2)
    return header, rest


def test_it_answers_the_three_questions(audit):
    card = audit.to_model_card("loans", done=["The threshold is 0.4 now."], data="rows of 2025")
    _, rest = header_of(card)
    assert re.findall(r"^## (.*)$", rest, re.M) == [
        "Who was looked at",
        "What was found",
        "What was done",
        "Limits",
    ]
    assert "6,000 rows of rows of 2025" in rest
    for one in audit.findings:
        assert one.slice.replace("<", "&lt;") in rest
    assert "`noise`" in rest  # looked at, in no finding
    assert "- The threshold is 0.4 now." in rest
    for row in audit.groups:
        assert f"| {row.rows:,} | {100 * row.error:.1f}%" in rest


def test_without_a_remedy_it_says_so(audit):
    assert "Nothing was changed after this audit." in audit.to_model_card("loans")


def test_the_header_has_the_scores(audit):
    header, _ = header_of(audit.to_model_card("loans", license="mit"))
    values = dict(re.findall(r"name: (\w+)\n\s+value: ([\d.e+-]+)", header))
    assert values.keys() == audit.scores.keys()
    for score, value in audit.scores.items():
        assert float(values[score]) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "text", ['a "quoted" name: yes', "line\n# heading", "back\\slash", "é <b>"]
)
def test_texts_cannot_leave_their_place(audit, text):
    header, rest = header_of(audit.to_model_card(text, done=text, data=text))
    name = re.search(r"^- name: (.*)$", header, re.M)[1]
    assert json.loads(name).replace("&lt;", "<") == " ".join(text.split())
    assert len(re.findall(r"^# ", rest, re.M)) == 1
    assert "<" not in rest
    rows = re.findall(r"^\|.*\|$", rest, re.M)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {
        6,
        7,
    }  # both tables keep their columns


def test_readers_of_the_hub_read_it(audit):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(audit.to_model_card("loans: 2", data="2025", license="mit"))
    assert card.data.license == "mit"
    result = next(one for one in card.data.eval_results if one.metric_type == "accuracy")
    assert result.metric_value == pytest.approx(audit.scores["accuracy"], rel=1e-5)


def test_a_regression_has_one_too():
    rng = np.random.default_rng(0)
    y = rng.normal(size=600)
    card = scdro.audit(y, y + rng.normal(size=600), {"x": rng.random(600)}).to_model_card("prices")
    assert "tabular-regression" in card
    assert "### Classes" not in card


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": 3}, {"name": "m", "done": [3]}])
def test_what_is_refused(audit, wrong):
    with pytest.raises(HyperparameterError):
        audit.to_model_card(**wrong)
