"""Processes that are killed with nothing said to them."""

import contextlib
import os
import signal
import subprocess
import time


def newest(folder, name="checkpoint.pt"):
    """When the last checkpoint in it was written; 0 where there is none, as for a moment while one replaces another."""
    times = [0]
    for path in folder.rglob(name):
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return max(times)


def kill_after_a_checkpoint(command, folder, seconds, name="checkpoint.pt", **settings):
    """Runs the command and kills it, so many seconds after it has written a checkpoint."""
    before, process = newest(folder, name), subprocess.Popen(command, **settings)
    while newest(folder, name) <= before:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.005)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
