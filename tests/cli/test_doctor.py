"""`scdro doctor`: it sees wrong arithmetic, missing and old packages."""

from __future__ import annotations

import re

import pytest

import scdro._state
import scdro.functional
from scdro.cli import checks, doctor, main


def test_doctor(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"scdro {scdro.__version__}, Python ")
    assert shown.out.endswith("everything works\n")
    assert shown.out.count("OK") == len(checks.devices()) * len(checks.CHECKS)
    assert "torch" in shown.out
    assert not shown.err


def slightly_wrong(find):
    return lambda *args, **settings: find(*args, **settings) * 1.001


def backwards(estimate):
    def estimated(*args, **settings):
        found = estimate(*args, **settings)
        return found._replace(weights=found.weights.flip(0))

    return estimated


@pytest.mark.parametrize(
    ("place", "name", "broken", "check"),
    [
        (scdro.functional, "solve_lam", slightly_wrong, "worst cases of known value"),
        (scdro._state.RobustState, "estimate", backwards, "training reaches the optimum"),
    ],
    ids=["lam", "weights"],
)
def test_doctor_sees_wrong_arithmetic(place, name, broken, check, monkeypatch, capsys):
    monkeypatch.setattr(place, name, broken(getattr(place, name)))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert re.search(rf"scdro doctor: cpu: {check}: .*expected", shown.err)
    assert "something is wrong" in shown.out


def test_doctor_goes_on_after_an_error(monkeypatch, capsys):
    monkeypatch.setattr(scdro.functional, "check_radius", lambda *_: 1 / 0)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert "ZeroDivisionError" in shown.err
    assert "resuming, bit for bit: OK" in shown.out


def test_doctor_sees_missing_and_old_packages(monkeypatch, capsys):
    lines = ["torch>=999.1", "no-such-package>=1", 'no-such-extra>=2; extra == "images"']
    monkeypatch.setattr("importlib.metadata.requires", lambda _: lines)
    assert doctor.requirements() == {
        "": {"torch": "999.1", "no-such-package": "1"},
        "images": {"no-such-extra": "2"},
    }
    assert doctor.run() == 1
    shown = capsys.readouterr()
    assert "expected torch >= 999.1, got" in shown.err
    assert "expected no-such-package, which is not installed" in shown.err
    assert "images        no-such-extra -" in shown.out
    assert "no-such-extra" not in shown.err


def test_versions_compare_by_number():
    assert doctor.numbers("2.13.0+cpu") == [2, 13, 0] > doctor.numbers("2.6")
    assert doctor.numbers("3.0a1") == [3, 0]
