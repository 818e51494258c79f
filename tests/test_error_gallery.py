"""docs/errors.md: what it says happens, happens, word for word."""

import torch

from error_gallery import PAGE, agrees, blocks, out_of, outcome, template_of, templates, under_two_headings
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
    assert set(errors.__all__) - shown == {"ScdroError", "ScdroWarning"}  # the base of all, and no error


def test_no_message_is_shown_for_two_causes():
    """One that is was caused by what an earlier block left behind."""
    known = templates()
    assert not under_two_headings(blocks(PAGE.read_text()), lambda block: template_of(block, known))
    assert not under_two_headings(blocks(PAGE.read_text()), out_of)


def test_messages_shown_twice_are_seen():
    first = "Another run.\n\n```console\n$ scdro train a --out run\nscdro train: expected x in run, got y; leave\n```\n"
    second = first.replace("y;", "z;")
    known = ["expected x in ..., got ...; leave", "..."]
    for page, times in (
        (first + second.removeprefix("Another run.\n\n"), 0),
        (first + second.replace("Another run", "No device"), 1),
    ):
        assert len(under_two_headings(blocks(page), lambda block: template_of(block, known))) == times
        assert len(under_two_headings(blocks(page), out_of)) == times


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
