"""Sums over slices against a loop over rows."""

import numpy as np
import pandas as pd

from scdro.auditing._codes import code_columns, read_frame  # the index is what the search stands on
from scdro.auditing._scan import SliceIndex


def test_sums_counts_and_rows():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": np.where(rng.random(800) < 0.1, np.nan, rng.normal(size=800)),
            "few": rng.integers(0, 5, 800),
            "name": rng.choice(["a", "b", None], 800),
            "when": pd.to_datetime("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, 800), "D"),
        }
    )
    index = SliceIndex(code_columns(read_frame(frame, 800)), 800, min_rows=20)
    values = rng.normal(size=(2, 800))
    sums = index.sums(values)
    seen = set()
    for k in range(len(index)):
        rows = index.rows(k)
        assert rows.sum() == index.counts[k] >= 20
        np.testing.assert_allclose(sums[:, k], values[:, rows].sum(1), atol=1e-9)
        query = " and ".join(f"({text})" for text in index.texts(k))
        seen.add(query)
        np.testing.assert_array_equal(rows, holds(frame, index.texts(k)))
    assert len(seen) == len(index) <= index.tests


def holds(frame, texts):
    """What the text of a condition says, read again."""
    rows = np.ones(len(frame), bool)
    for text in texts:
        words = text.split(" ")
        if text.endswith(" is missing"):
            rows &= frame[words[0]].isna().to_numpy()
        elif len(words) == 5:
            column = frame[words[2]]
            low, high = map(pd.Timestamp if words[2] == "when" else float, (words[0], words[4]))
            rows &= ((column > low) & (column <= high)).to_numpy()
        else:
            name, sign, value = words
            column = frame[name]
            if name == "name":
                rows &= (column == value).to_numpy()
                continue
            cut = pd.Timestamp(value) if name == "when" else float(value)
            rows &= {"=": column == cut, "<=": column <= cut, ">": column > cut}[sign].to_numpy()
    return rows


def test_texts_are_split_into_words():
    texts = [
        f"number {k} and finna go" if k % 9 == 0 else f"number {k} and more so" for k in range(400)
    ]
    index = SliceIndex(code_columns(read_frame({"tweet": texts})), 400, min_rows=10)
    k = [index.text(k) for k in range(len(index))].index('tweet has "finna"')
    np.testing.assert_array_equal(index.rows(k), np.arange(400) % 9 == 0)
