"""What is in a folder of runs, as one HTML page."""

from scdro.application.report.known import Known
from scdro.application.report.markup import tag
from scdro.application.report.page import write_report
from scdro.application.report.png import data_uri, png, small
from scdro.application.report.reading import Sweep

__all__ = ["Known", "Sweep", "data_uri", "png", "small", "tag", "write_report"]
