"""Weak subgroups as a check of skore: `report.checks.add([WeakSubgroups()])`.

Needs the extra `skore`.
"""

from __future__ import annotations

from typing import Any

from skore import Check, CheckNotApplicable

from scdro.auditing import Audit, audit
from scdro.errors import DataError

__all__ = ["WeakSubgroups"]

TASKS = ("binary-classification", "multiclass-classification", "regression")


class WeakSubgroups(Check):
    """Where a model fails among the test rows of an `EstimatorReport`, by `scdro.audit`.

    An issue is reported if a group is found; otherwise the check has passed. It looks at all pairs
    of conditions, so skore counts it among the slow ones: `report.checks.summarize()` runs it, and
    `fast_mode=True` does not.

    Args:
        frame: columns that describe the test rows, if not those of the report's `X_test`.
        settings: of `scdro.audit`, such as `alpha`, `sensitive_features` or `max_findings`.

    Attributes:
        audit: of the report looked at last, with everything that was found; None before that.

    Example:
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skore import evaluate
        >>> X = np.random.default_rng(0).normal(size=(4000, 2))
        >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
        >>> report = evaluate(LogisticRegression(), X, y, splitter=0.5)
        >>> report.checks.add([WeakSubgroups()])
        >>> "SCDRO001" in set(report.checks.summarize().frame(section="issue")["code"])
        True
    """

    code = "SCDRO001"
    title = "Weak subgroups"
    report_types = ["estimator"]  # noqa: RUF012 (skore asks for a list)
    docs_url = "https://scdro.github.io/scdro/integrations.html#skore"
    severity = "issue"
    slow = True

    def __init__(self, frame: Any = None, **settings: Any) -> None:
        self.frame, self.settings = frame, settings
        self.audit: Audit | None = None

    def check_function(self, report: Any) -> str | None:
        """The findings in sentences; None if no group stands out."""
        if report.ml_task not in TASKS:
            raise CheckNotApplicable(f"Expected one of {', '.join(TASKS)}. Got {report.ml_task}.")
        if report.X_test is None or report.y_test is None:
            raise CheckNotApplicable("Expected test rows with labels. Got none.")
        try:
            found = audit(
                report.estimator_, report.X_test, report.y_test, self.frame, **self.settings
            )
        except DataError as problem:
            raise CheckNotApplicable(f"The test rows cannot be audited: {problem}") from problem
        self.audit = found
        if not found.findings:
            return None
        return " ".join(
            [found.headline, *(f"({one.kind}) {one}" for one in found.findings), *found.notes]
        )
