"""docs/errors.md: what it says happens, happens, word for word."""

import torch

from error_gallery import PAGE, agrees, blocks, outcome
from scdro import errors


def test_every_message_of_the_page_is_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names, wrong = {}, []
    for block in blocks(PAGE.read_text()):
        got = outcome(block, names)
        if (block.message is None) != (got is None) or (got is not None and not agrees(block.message, got)):
            wrong.append(f"{block.code}\n  the page: {block.message}\n  now:      {got}")
    assert not wrong, "\n".join(wrong)


def test_every_type_of_error_is_shown():
    shown = {block.raised for block in blocks(PAGE.read_text())}
    assert set(errors.__all__) - shown == {"ScdroError"}  # the base of all


def test_the_comparison_can_fail():
    assert agrees("a ... b\nc", "a 1 2 b c")
    assert not agrees("a b", "a c")
    page = (
        "```python\nint('x')\n```\n```text\nValueError: no\n```\n"
        "```python\n1\n```\n```console\n$ scdro x\nscdro x: y\n```\n"
    )
    first, second, third = blocks(page)
    assert (first.message, second.message, third.message) == ("ValueError: no", None, "scdro x: y")
    assert not agrees(first.message, outcome(first, {}))
    assert outcome(second, {}) is None
