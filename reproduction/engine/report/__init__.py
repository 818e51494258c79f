"""A folder of runs as one HTML page."""

from reproduction.engine.report.known import Known
from reproduction.engine.report.markup import tag
from reproduction.engine.report.page import write_report
from reproduction.engine.report.png import data_uri, png, small
from reproduction.engine.report.sweeps import Sweep

__all__ = ["Known", "Sweep", "data_uri", "png", "small", "tag", "write_report"]
