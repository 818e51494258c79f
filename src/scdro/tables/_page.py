"""The report page of a summary."""

from __future__ import annotations

import html
import json

from scdro.tables._summary import Summary

__all__ = ["render"]


def render(summary: Summary) -> str:
    """HTML: the verdict, and all numbers below it."""
    verdict = summary["verdict"]
    title, headline, text = (
        html.escape(part) for part in (summary["title"] or "scdro", verdict["headline"], " ".join(verdict["sentences"]))
    )
    numbers = html.escape("".join(c if c.isprintable() or c == "\n" else " " for c in json.dumps(summary, indent=1)))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><h1>{headline}</h1><p>{text}</p>'
        f"<pre>{numbers}</pre></html>\n"
    )
