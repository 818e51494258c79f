"""A model card from an audit, in Hugging Face's form: Markdown below a header of YAML.

Three questions that a reader of a model has: who was looked at, what was found, what was done. The
first two are in the audit; the third is told by whoever did it. skops.card and huggingface_hub read
the text as it is:

    ---                         header: library, license, tags, and the scores as a model index
    # name
    ## Who was looked at        rows, columns, slices, the chance of a false finding
    ## What was found           the findings by kind; classes; the groups asked for
    ## What was done            the words of the author
    ## Limits                   what the audit could not tell
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scdro.errors import HyperparameterError

if TYPE_CHECKING:
    from scdro.auditing._audit import Audit

__all__ = ["card_of"]

METRICS = {  # our names of scores, and those of Hugging Face's hub
    "accuracy": "accuracy",
    "log_loss": "log_loss",
    "mean_absolute_error": "mae",
    "r2": "r_squared",
}


def card_of(
    audit: Audit,
    *,
    name: str,
    done: str | Sequence[str],
    about: str,
    data: str,
    license: str | None,
) -> str:
    """The text of the card; see `Audit.to_model_card`."""
    for what, text in (("name", name), ("about", about), ("data", data)):
        if not isinstance(text, str):
            raise HyperparameterError(f"expected {what} as a text, got {text!r}")
    if not name.strip():
        raise HyperparameterError("expected the name of the model, got an empty text")
    steps = [done] if isinstance(done, str) else list(done)
    if not all(isinstance(step, str) for step in steps):
        raise HyperparameterError(f"expected done as a text or a list of texts, got {done!r}")
    parts = [
        _write_header(audit, name, data, license),
        f"# {_escape_line(name)}",
        *([about.strip()] if about.strip() else []),
        "## Who was looked at",
        _write_looked_at(audit, data),
        "## What was found",
        *_write_findings(audit),
        "## What was done",
        "\n".join(f"- {_escape_line(step)}" for step in steps if step.strip())
        or "Nothing was changed after this audit.",
        "## Limits",
        _write_limits(audit),
    ]
    return "\n\n".join(parts) + "\n"


def _write_header(audit: Audit, name: str, data: str, license: str | None) -> str:
    """YAML, every text in double quotes as JSON writes them, which YAML reads."""
    task = "tabular-classification" if audit.unit == "share" else "tabular-regression"
    lines = ["---", *([f"license: {json.dumps(license)}"] if license else [])]
    lines += ["library_name: scdro", "tags:", "- scdro", "- fairness", f"- {task}"]
    lines += [
        "model-index:",
        f"- name: {json.dumps(_escape_line(name))}",
        "  results:",
        "  - task:",
    ]
    lines += [f"      type: {task}", "    dataset:"]
    lines += [
        "      type: private",
        f"      name: {json.dumps(_escape_line(data) or 'held-out rows')}",
    ]
    lines += ["    metrics:"]
    for score, value in audit.scores.items():
        if math.isfinite(value):
            lines += [f"    - type: {METRICS.get(score, score)}", f"      name: {score}"]
            lines += [f"      value: {value:.6g}"]
    return "\n".join([*lines, "---"])


def _write_looked_at(audit: Audit, data: str) -> str:
    """The paragraph on rows, slices and the chance of a false finding.

    data: what the rows are, in the words of the author; "" if not said.
    """
    whose = f" of {_escape_line(data)}" if data.strip() else ""
    scores = ", ".join(f"{score.replace('_', ' ')} {v:.4g}" for score, v in audit.scores.items())
    return (
        f"{audit.rows:,} rows{whose}, and {audit.slices:,} slices of them: every condition on a"
        " column, and pairs of conditions. If the model were right about everybody, the chance of"
        f" any finding of wrong probabilities would be at most {audit.alpha:.2g}. This holds for"
        f" rows that did not train the model. Over all rows: {scores}."
    )


def _write_findings(audit: Audit) -> list[str]:
    """The headline; findings by kind; columns in none; tables of the classes and of the groups."""
    parts = [audit.headline]
    for kind in dict.fromkeys(one.kind for one in audit.findings):
        told = "\n".join(
            f"- {_escape_line(str(one))}" for one in audit.findings if one.kind == kind
        )
        parts += [f"### {kind[0].upper()}{kind[1:]}", told]
    if audit.passed:
        columns = ", ".join(_as_code(row.column) for row in audit.passed)
        parts += [f"Columns that were looked at and are in no finding: {columns}."]
    if audit.classes:
        rows = [
            [
                row.label,
                f"{row.rows:,}",
                *map(_write_known_percent, (row.observed, row.decided, row.missed)),
            ]
            for row in audit.classes
        ]
        heads = ["class", "rows", "share", "share decided", "members missed"]
        parts += ["### Classes", _write_markdown_table(heads, rows)]
    if audit.groups:
        share = audit.unit == "share"
        error = "wrong decisions" if share else "mean absolute error"
        by_group = [
            [row.group, row.label or "all", f"{row.rows:,}",
             f"{_write_known_percent(row.error)} ({_write_known_percent(row.low)} to {_write_known_percent(row.high)})"
             if share else f"{row.error:.4g}"]
            for row in audit.groups
        ]  # fmt: skip
        parts += [
            "### Groups asked for",
            _write_markdown_table(["group", "class", "rows", error], by_group),
        ]
    return parts


def _write_limits(audit: Audit) -> str:
    """A list of what the audit cannot tell: always two sentences, then its notes."""
    notes = [
        "A slice that is too small, or that no column describes, cannot be found.",
        "What holds for these rows need not hold for rows from another place or time.",
        *audit.notes,
    ]
    return "\n".join(f"- {_escape_line(note)}" for note in notes)


def _write_markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown; cells may hold any text."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(_escape_cell(cell) for cell in line) + " |" for line in lines
    )


def _write_known_percent(value: float) -> str:
    """A share in per cent, or "not known" for NaN."""
    return "not known" if math.isnan(value) else f"{100 * value:.1f}%"


def _escape_cell(text: str) -> str:
    """A text in a table, where a bar would end the cell."""
    return _escape_line(text).replace("|", "\\|")


def _as_code(text: str) -> str:
    """A name of a column in code type, where a backtick would end it."""
    return f"`{_escape_line(text).replace('`', chr(39))}`"


def _escape_line(text: str) -> str:
    """One line of plain text: nothing from a table's values becomes a heading or a tag."""
    return re.sub(r"\s+", " ", text).strip().replace("<", "&lt;")
