"""`scdro doctor`: what is installed, and whether it computes what it should.

It prints the system, the versions of every package by extra, the devices, and the result of each check
of `scdro.cli.checks` on each device. What is missing, too old or wrong goes to standard error, and the
exit status is 1. Its output is meant for bug reports, so a check that raises does not end it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections import defaultdict

from scdro import __version__

__all__ = ["run"]

REQUIREMENT = re.compile(
    r"""(?P<name>[\w.-]+)(\[[\w,-]+\])?(>=(?P<least>[\d.]+))?.*?(extra == ['"](?P<extra>[\w-]+)['"])?$"""
)


def run() -> int:
    """Print the report; return the exit status."""
    print(f"scdro {__version__}, Python {platform.python_version()}, {platform.platform()}")
    wrong = [*_packages(), *_self_test()]
    for problem in wrong:
        print(f"scdro doctor: {problem}", file=sys.stderr)
    print("something is wrong, see above" if wrong else "everything works")
    return 1 if wrong else 0


def _packages() -> list[str]:
    """Print the versions of all packages that scdro can use, by extra; return what is missing or too old."""
    wrong = []
    for extra, needed in requirements().items():
        versions = {name: version_of(name) for name in needed}
        print(
            f"{extra or 'needed':<14}"
            + ", ".join(f"{name} {version or '-'}" for name, version in versions.items())
        )
        for name, version in versions.items():
            least = needed[name]
            if version is None and not extra:
                wrong.append(f"expected {name}, which is not installed; pip install {name}")
            elif version is not None and least and numbers(version) < numbers(least):
                wrong.append(
                    f"expected {name} >= {least}, got {version}; pip install --upgrade {name}"
                )
    return wrong


def requirements() -> dict[str, dict[str, str]]:
    """For each extra ("" for none), the packages and their lowest versions, from the metadata of the package."""
    try:
        lines = importlib.metadata.requires("scdro") or []
    except importlib.metadata.PackageNotFoundError:
        lines = ["torch", "numpy", "scipy", "scikit-learn", "narwhals"]
    by_extra: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in lines:
        match = REQUIREMENT.match(line)
        if match is not None and match["name"] != "scdro":
            by_extra[match["extra"] or ""][match["name"]] = match["least"] or ""
    return dict(by_extra)


def version_of(package: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> list[int]:
    """1.26.4 is [1, 26, 4], 2.6.0a1+cpu is [2, 6, 0]."""
    return [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]


def _self_test() -> list[str]:
    """Print the devices, and run every check on each; return what is wrong."""
    if version_of("torch") is None:
        print(f"{'self-test':<14}not run: it needs torch")
        return []
    import torch

    from scdro.cli.checks import CHECKS, devices

    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch"
    print(f"{'devices':<14}{', '.join(devices())}; {threads}")
    wrong = []
    for device in devices():
        for about, check in CHECKS.items():
            try:
                error = check(torch.device(device))
            except Exception as problem:  # the other checks still run
                wrong.append(f"{device}: {about}: {type(problem).__name__}: {problem}")
                continue
            print(f"{'self-test':<14}{device}: {about}: {error or 'OK'}")
            wrong += [f"{device}: {about}: {error}"] if error else []
    return wrong
