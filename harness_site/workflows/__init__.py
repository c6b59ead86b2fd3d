"""The bundled workflows."""

from harness_site.workflows.code_task.workflow import code_task
from harness_site.workflows.modernise.workflow import modernise
from harness_site.workflows.report import report

__all__ = ["code_task", "modernise", "report"]
