"""Whom does a model fail, and of which kind is the failure? Labels, predictions and columns in; findings out."""

from scdro.auditing._audit import Audit, ClassRow, GroupErrors, Passed, audit
from scdro.auditing._codes import SliceCondition
from scdro.auditing._findings import Finding
from scdro.auditing._gate import Gate, GateError, SliceScore
from scdro.auditing._subgroup import Clause, WorstSubgroup, worst_subgroup

__all__ = [
    "Audit",
    "ClassRow",
    "Clause",
    "Finding",
    "Gate",
    "GateError",
    "GroupErrors",
    "Passed",
    "SliceCondition",
    "SliceScore",
    "WorstSubgroup",
    "audit",
    "worst_subgroup",
]
