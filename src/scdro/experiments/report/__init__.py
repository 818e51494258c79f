"""`scdro report`: what is in a folder of runs, as one HTML page."""

from scdro.experiments.report.page import write_report

__all__ = ["write_report"]
