"""What is written to a terminal, and to a file in its place."""

import io

from scdro._terminal import ProgressLine, WaitingLine, clean, show_text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_file_is_few_lines(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    show = ProgressLine(stream, every=30.0)
    for done in range(1, 101):
        show(done, 100, f"step {done}")
        now[0] += 1.0
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["1%", "31%", "61%", "91%", "100%"]
    assert lines[1].endswith(" 0:01:10 left")


def test_progress_on_a_terminal_is_one_line_of_its_width(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    show = ProgressLine(stream)
    for done in (1, 2, 3):
        now[0] += 7200.0
        show(done, 3, "a long text " * 9)
    parts = stream.getvalue().split("\r\x1b[2K")
    assert len(parts) == 4
    assert all(len(part.rstrip("\n")) <= 29 for part in parts)
    assert stream.getvalue().count("\n") == 1


def test_who_waits_is_told_what_for_and_the_line_is_erased(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = Terminal()
    with WaitingLine("audit", stream) as tell:
        for text in ("quick", "still quick", "long"):
            tell(text)
            now[0] += 1.5
    assert stream.getvalue() == "\r\x1b[2Kaudit, 3 s: long\r\x1b[2K"


def test_nobody_waits_at_a_file(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    with WaitingLine("audit", stream) as tell:
        now[0] = 60.0
        tell("long")
    assert stream.getvalue() == ""


def test_text_from_a_file_cannot_steer_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert clean("a\x1b[31m\u202eb") == "a\\x1b[31m?b"
    stream = io.StringIO()
    show_text("first\n  " + "word " * 12, stream)
    first, *lines = stream.getvalue().splitlines()
    assert first == "first"
    assert len(lines) > 1
    assert all(len(line) <= 30 for line in lines)
    assert lines[0].startswith("  word")
    assert lines[1].startswith("    word")
