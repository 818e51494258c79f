"""The progress of a sweep."""

import io
import re

from reproduction.board import Board
from reproduction.pool import Status


def test_a_line_does_not_break_the_board():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    board = Board(Terminal())
    board.every = 0.0
    board(Status(2, 0, {"one": 0.5}))
    board.say("one failed")
    board(Status(2, 1))
    drawn = board.stream.getvalue()
    assert (
        re.sub(r"\[[#.]+\]", "[]", drawn)
        == "\x1b[J[]   0% 0/2 runs\n  []  50% one\n\x1b[2A\x1b[Jone failed\n\x1b[J[]  50% 1/2"
        " runs\n"
    )
