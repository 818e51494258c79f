"""The page: one sentence and one picture first, then the findings, then what passed."""

import re

import numpy as np
import pytest

import scdro
from html_page import Page


def regression():
    rng = np.random.default_rng(0)
    city = rng.choice(["Oslo", "Rome", "Lima"], 4000)
    said = rng.normal(size=4000)
    y = said + 2 * (city == "Lima") + rng.normal(size=4000) * np.where(city == "Rome", 4, 1)
    return scdro.audit(y, said, {"city": city}, intervals=(said - 2, said + 2))


def classes(found=True):
    rng = np.random.default_rng(0)
    city, p = rng.choice(["Oslo", "Rome"], 4000), rng.uniform(0.1, 0.5, 4000)
    y = rng.random(4000) < p + 0.3 * found * (city == "Rome")
    return scdro.audit(y, p, {"city": city, "noise": rng.random(4000)})


@pytest.mark.parametrize("audit", [classes(), regression(), classes(False)], ids="crn")
def test_order(audit, tmp_path):
    audit.save(tmp_path / "audit.html")
    page = Page(tmp_path / "audit.html")
    sections = [a["aria-label"] for name, a in page.elements if name == "section"]
    assert sections[0] == "The answer"
    answer = page.source.split('aria-label="The answer"')[1].split("</section>")[0]
    assert audit.headline in answer
    assert answer.count("<figure>") == (1 if audit.findings else 0)
    kinds = {one.kind for one in audit.findings}
    charts = 1 if "wrong probabilities" in kinds else len(kinds)
    assert page.source.count("<figure>") == charts
    if audit.findings:
        assert sections[1] == "Findings"
    if audit.passed:
        assert sections.index("Looked at, and passed") > 0
    assert not re.search(r"https?://(?!www.w3.org)", page.source)
    assert "<script" not in page.source
    assert audit.headline in audit._repr_html_()
