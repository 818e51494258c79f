"""Products with a tall matrix on all cores: one block of rows per thread, each with single-threaded
BLAS.

Multithreaded BLAS waits at barriers inside every product; if other work keeps the cores busy, this
costs a hundred times what it gains. Blocks of rows synchronise only once, at the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

__all__ = ["limit_blas_threads", "map_blocks"]

T = TypeVar("T")
_SMALL = 400_000  # below this many multiplications, starting a thread does not pay off
_workers = 1  # threads that `map_blocks` may use
# Fits in several threads share one limit, and the last to finish lifts it.
_lock, _depth = threading.Lock(), 0
_limit: Any = None  # of threadpoolctl, while _depth > 0


@cache
def _controller() -> ThreadpoolController:
    """What knows the BLAS libraries; looking for them takes a while, so it is made once."""
    return ThreadpoolController()


@cache
def _executor(workers: int) -> ThreadPoolExecutor:
    """The threads, which wait for work between calls."""
    return ThreadPoolExecutor(workers, thread_name_prefix="scdro")


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Limit BLAS to one thread; meanwhile `map_blocks` uses as many threads as BLAS was allowed."""
    global _workers, _depth, _limit
    with _lock:
        if _depth == 0:
            blas = _controller().select(user_api="blas")
            _workers = max([1, *(library["num_threads"] for library in blas.info())])
            _limit = blas.limit(limits=1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _workers = 1
                _limit.restore_original_limits()


def map_blocks(f: Callable[[slice], T], n: int, work: int) -> list[T]:
    """Call f on slices that cover range(n), each in its own thread, and return the results in
    order.

    `work` is the number of multiplications of all calls, which decides how many threads pay off;
    zero keeps everything in this thread.
    """
    workers = min(_workers, max(work // _SMALL, 1))
    if workers == 1:
        return [f(slice(0, n))]
    size = -(-n // workers)
    return list(
        _executor(workers).map(
            f, (slice(start, min(start + size, n)) for start in range(0, n, size))
        )
    )


if hasattr(os, "register_at_fork"):  # a fork has none of its parent's threads
    os.register_at_fork(after_in_child=_executor.cache_clear)
