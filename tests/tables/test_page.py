"""The report page: everything in it, in order, escaped; in a browser at the widths of a desk and of a phone."""

import copy
import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import chromium
from scdro._html import LONGEST, axis_for
from scdro.tables._page import MANY_COLUMNS, MANY_GROUPS, render

EXAMPLE = json.loads((Path(__file__).parent / "summary_example.json").read_text())
HOSTILE = [
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "\x1b[31mred\x1b[0m",
    "left\u202eright",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "'; background: url(http://example.invalid/x); '",
]
EMPTY = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source"}


class Page(HTMLParser):
    """Elements, text and headings; elements that are not closed in order are an error."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.sections = [], [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.sections += [value for name, value in attrs if tag == "h2" and name == "id"]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def __contains__(self, words):
        return words in re.sub(r"\s+", " ", "".join(self.text))


def page(**changes):
    return Page(render(EXAMPLE | changes))


def test_the_verdict_and_its_numbers_come_first():
    found = page()
    assert found.sections == [
        "answer",
        "warnings",
        "slices",
        "groups",
        "methods",
        "data",
        "settings",
    ]
    verdict = EXAMPLE["verdict"]
    assert all(
        words in found
        for words in (verdict["headline"], *verdict["sentences"], *EXAMPLE["warnings"])
    )
    for number in (
        "87.4% → 87.1%",
        "−0.3 points (−0.6 to +0.0)",
        "1.168 → 0.685",
        "2.06 → 0.926",
        "65.8% → 65.2%",
    ):
        assert number in found
    assert "2,337 rows, 23.9%" in found
    assert "4 rows, <0.1%" in found
    assert "label = >50K and capital-gain <= 5013" in found


def test_every_place_escapes_what_a_user_named():
    def hostile(thing, key=""):
        if isinstance(thing, dict):
            return {k: hostile(v, k) for k, v in thing.items()}
        if isinstance(thing, list):
            return [hostile(v, key) for v in thing]
        words = {
            "name",
            "target",
            "classes",
            "conditions",
            "sentence",
            "note",
            "headline",
            "sentences",
            "title",
            "text",
        }
        words |= {"warnings", "group", "loss"}
        return " ".join(HOSTILE) if isinstance(thing, str) and key in words else thing

    summary = hostile(copy.deepcopy(EXAMPLE))
    for method, kept in zip(summary["methods"], EXAMPLE["methods"], strict=True):
        method["name"], method["settings"] = kept["name"], {HOSTILE[0]: HOSTILE[4]}
    html = render(summary)
    found = Page(html)
    assert not {"script", "img", "iframe", "link"} & set(found.tags)
    assert not [
        (tag, name)
        for tag, name, _ in found.attributes
        if name.startswith("on") or name in ("src", "style")
    ]
    assert {value[:1] for tag, name, value in found.attributes if name == "href"} == {"#"}
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "<script>alert(1)</script> =cmd" in found
    assert "\\u001b[31mred" in found
    assert "left\\u202eright" in found
    assert "{{ 7 * 7 }}" in found


def test_long_names_and_many_of_them():
    group = EXAMPLE["groups"][0]
    many = [group | {"name": f"g{k} " + "x" * 5000} for k in range(MANY_GROUPS + 7)]
    column = EXAMPLE["data"]["columns"][0]
    data = EXAMPLE["data"] | {
        "columns": [column | {"name": f"c{k}"} for k in range(MANY_COLUMNS + 11)]
    }
    html = render(EXAMPLE | {"groups": many, "data": data})
    assert "x" * (LONGEST + 1) not in html
    found = Page(html)
    assert "7 more are in summary.json" in found
    assert "11 more are in summary.json" in found


@pytest.mark.parametrize(
    "answer",
    ["helps", "costs too much", "no difference", "degenerate", "nothing learned", "not tried"],
)
def test_where_little_is_known(answer):
    nothing = {
        "price": None,
        "robust_value": None,
        "tail": None,
        "worst_group": None,
        "robust": None,
    }
    verdict = EXAMPLE["verdict"] | nothing | {"answer": answer, "kept": "plain"}
    found = page(
        verdict=verdict,
        groups=[],
        slices=[],
        warnings=[],
        methods=EXAMPLE["methods"][:1],
    )
    assert answer in found
    assert "No description of the rows stands out" in found
    assert "warnings" not in found.sections


def test_without_a_robust_model_nothing_is_after():
    assert "after" in page()
    found = page(verdict=EXAMPLE["verdict"] | {"robust": None, "price": None})
    assert "after" not in found
    assert "Before is" not in found
    assert "Kept for predictions" in found


def test_regression():
    estimate = {"value": 0.31, "low": -0.02, "high": None}
    method = EXAMPLE["methods"][0] | {
        "scores": {"R2": estimate, "mean_absolute_error": estimate | {"value": 12345.678}}
    }
    task = {
        "type": "regression",
        "target": "wage",
        "classes": [],
        "counts": [],
        "score": "R2",
        "loss": "squared error",
    }
    difference = {"before": 0.31, "after": 0.3, "difference": -0.01, "low": -0.02, "high": 0.004}
    group = EXAMPLE["groups"][0] | {"scores": {"plain": {"value": 0.0, "low": None, "high": None}}}
    verdict = EXAMPLE["verdict"] | {"price": difference, "worst_group": None}
    found = page(task=task, methods=[method], verdict=verdict, groups=[group])
    assert "R² 0.31 → 0.3 −0.01 (−0.02 to +0.004)" in re.sub(
        r"\s+", " ", "".join(found.text)
    ).replace("Price: ", "")
    assert "12,346" in found
    assert "Mean absolute error on the test rows" in found


def test_a_group_outside_of_the_scale_is_a_number():
    small = EXAMPLE["groups"][2]
    html = render(EXAMPLE)
    assert small["small"]
    assert "◂ 25.0%" in html
    assert "◂ 65.8%" not in html


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [5.0, 5.0],
        [1e-9, 2e-9],
        [-3.0, 1e6],
        [0.61, 0.88],
        [0.9686, 0.97],
        [0.0, 0.1],
        [],
        [None, float("nan"), 2.0],
        [1e300, 1.1e300],
    ],
)
def test_axes_hold_their_values(values):
    axis = axis_for(values)
    known = [value for value in values if value is not None and value == value]
    assert axis.low < axis.high
    assert 2 <= len(axis.ticks) <= 9
    assert axis.ticks == sorted(set(axis.ticks))
    assert all(axis.low <= value <= axis.high for value in known)
    assert all(0 <= axis.at(value) <= 100 for value in known)
    assert (axis.at(axis.low), axis.at(axis.high)) == (0, 100)
    for share in (False, True):
        labels = [axis.label(tick, share) for tick in axis.ticks]
        assert len(set(labels)) == len(labels)


def test_an_axis_does_not_enlarge_noise():
    """Accuracies of 88.965 to 88.985% are the same: the axis spans five points at least."""
    near = {"value": 0.88975, "low": 0.88965, "high": 0.88985}
    groups = [EXAMPLE["groups"][0] | {"scores": {"plain": near, "worst-case": near}}]
    html = render(EXAMPLE | {"groups": groups})
    ticks = [float(tick) for tick in re.findall(r">([\d.]+)%</text>", html)]
    assert ticks[-1] - ticks[0] >= 5


@pytest.mark.parametrize(("p", "shown"), [(1e-238, "< 0.001"), (0.0, "< 0.001"), (0.0123, "0.01")])
def test_p_values_are_readable(p, shown):
    assert shown in page(slices=[EXAMPLE["slices"][0] | {"p_value": p}])


def test_the_price_out_of_fold_is_half_of_the_price():
    assert "at most 0.10 points of accuracy" in page(
        settings=EXAMPLE["settings"] | {"budget": 0.002}
    )


@pytest.mark.browser
@pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")
def test_in_a_browser(tmp_path):
    long = [EXAMPLE["groups"][0] | {"name": "column = " + "w" * 280}, *EXAMPLE["groups"][1:]]
    path = tmp_path / "report.html"
    path.write_text(
        render(EXAMPLE | {"groups": long, "title": HOSTILE[0] + HOSTILE[4]}), encoding="utf-8"
    )
    with chromium.Browser(tmp_path / "profile") as browser:
        colours = {}
        for width, dark in ((1280, False), (390, False), (390, True)):
            browser.open(path, width=width, dark=dark)
            assert (
                browser.run("document.documentElement.scrollWidth") <= width
            )  # nothing sticks out
            assert (
                browser.run("document.querySelector('.verdict').getBoundingClientRect().top") < 260
            )
            colours[dark] = browser.run("getComputedStyle(document.body).backgroundColor")
            marks = (
                "[...document.querySelectorAll('.group svg svg')].map(m =>"
                " m.getBoundingClientRect())"
            )
            assert browser.run(
                f"{marks}.every(r => r.width > 4 && r.left >= 0 && r.right <= innerWidth)"
            )
        assert colours[False] != colours[True]
        stops = browser.run(
            "[...document.querySelectorAll('a, summary, [tabindex]')].filter(e =>"
            " e.checkVisibility()).every(e => { e.focus(); return document.activeElement === e; })"
        )
        assert stops
        browser.run("document.querySelector('summary').click()")
        assert browser.run("document.querySelector('details').open")
        browser.ask("Emulation.setEmulatedMedia", media="print")
        assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
        shown = (
            "[...document.querySelectorAll('details:not([open]) table')].map(t =>"
            " t.getBoundingClientRect().height)"
        )
        assert min(browser.run(shown)) > 20
        assert browser.complaints == []
        assert {address.split(":")[0] for address in browser.requests} == {"file"}


def test_a_table_that_is_cut_says_so_and_the_sentences_have_an_order():
    page = render(EXAMPLE)
    assert "scroll it sideways" in page
    first, *others = EXAMPLE["verdict"]["sentences"]
    before, _, after = page.partition('<ul class="evidence soft">')
    assert f"<p>{escape(first)}</p>" in before
    assert all(f"<li>{escape(one)}</li>" in after for one in others)
