"""The bundled workflows."""

from harness_site.workflows.modernise.workflow import modernise
from harness_site.workflows.report import report

__all__ = ["modernise", "report"]
