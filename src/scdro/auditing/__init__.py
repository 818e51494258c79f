"""Where does a model fail, and in which way? Labels, predictions and columns in; findings out.

    audit             findings, each of one kind: wrong probabilities, hard, or the threshold
    Audit.check       a gate: rules that no slice may break
    worst_subgroup    the mean loss of the worst share of the rows that columns can describe

`_audit` is the place to begin reading; its docstring names the other files in their order.
"""

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
