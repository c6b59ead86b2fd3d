"""The workflows that this process knows, and where they are found.

Looked for in the `workflows` module of every installed app, in `./workflows/` (every `NAME.py`),
and in the modules that LONGWATCH_WORKFLOWS names; of a package, every module in it. A module that
can't be imported is on record in `load_errors` and stops nobody.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from django.apps import apps
from django.conf import settings

from ledger.canonical import clean_text
from ledger.errors import UnknownWorkflow
from ledger.turns import KEY

if TYPE_CHECKING:
    from ledger.models import Task
    from ledger.workflows import Workflow

logger = logging.getLogger(__name__)

load_errors: dict[str, str] = {}
"""Module (or file) name -> why its workflows are not known; renewed by `load_all`."""

_workflows: dict[tuple[str, str], Workflow] = {}
_latest: dict[str, Workflow] = {}
_loaded = False


def register(workflow: Workflow) -> Workflow:
    """Make `workflow` known to this process; its name without a version then means this one.

    Modules that are looked through need no call: a workflow in a module's variable is found.
    Raises ValueError when another workflow has the same name and version, or it has no step.
    """
    if not workflow.steps:
        raise ValueError(f"workflow {workflow.name} version {workflow.version} has no steps")
    key = (workflow.name, workflow.version)
    if _workflows.setdefault(key, workflow) is not workflow:
        raise ValueError(
            f"two workflows are named {workflow.name} version {workflow.version}; "
            "rename one or raise its version"
        )
    _latest[workflow.name] = workflow
    return workflow


@contextlib.contextmanager
def registered(*workflows: Workflow) -> Iterator[None]:
    """Make the workflows known inside the block only, in place of any of the same name: tests."""
    _ensure_loaded()
    workflows_before, latest_before = dict(_workflows), dict(_latest)
    try:
        for workflow in workflows:
            _workflows.pop((workflow.name, workflow.version), None)
            register(workflow)
        yield
    finally:
        _workflows.clear()
        _workflows.update(workflows_before)
        _latest.clear()
        _latest.update(latest_before)


def load_all() -> None:
    """Import every module with workflows and register what they hold. Never raises for one."""
    global _loaded
    _loaded = True
    load_errors.clear()
    for app in apps.get_app_configs():
        name = f"{app.name}.workflows"
        # `ledger.workflows` is the authors' API itself.
        if app.label != "longwatch_ledger" and _find_module(name):
            _load_module(name)
    for name in _list_named_modules():
        _load_module(name)
    for path in sorted(Path("workflows").resolve().glob("[!_.]*.py")):
        if not path.name.startswith("test_"):  # `new_workflow` puts a workflow's test beside it
            _load_file(path)


def get(name: str, version: str | None = None) -> Workflow:
    """The workflow of this name and version (None: the last registered). Raises UnknownWorkflow."""
    _ensure_loaded()
    found = _latest.get(name) if version is None else _workflows.get((name, version))
    if found is None:
        raise UnknownWorkflow(name, version, ", ".join(sorted(_latest)))
    return found


def known() -> frozenset[tuple[str, str]]:
    """Every (name, version) that this process can run."""
    _ensure_loaded()
    return frozenset(_workflows)


def all_workflows() -> list[Workflow]:
    """Every workflow that this process can run, by name and then in order of registration."""
    _ensure_loaded()
    return sorted(_workflows.values(), key=lambda workflow: workflow.name)


def locate(workflow: Workflow) -> tuple[str, str]:
    """The module that has the workflow in a variable, and its file: where another process finds it.

    Raises LookupError when no module has it, as for one that is made in a function.
    """
    homes = dict.fromkeys(getattr(step.fn, "__module__", "") for step in workflow.steps)
    for name in [*homes, *list(sys.modules)]:
        module = sys.modules.get(name)
        if module and name != "__main__" and _find_in(module, workflow.name, workflow.version):
            return name, str(getattr(module, "__file__", None) or "")
    raise LookupError(f"{workflow!r} stands in no module's variable, where a process finds it")


def load_located(module_name: str, file: str, name: str, version: str) -> Workflow:
    """In another process: the workflow of that name from where `locate` found it."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        module = None
    if module is None or str(getattr(module, "__file__", None) or "") != file:  # of ./workflows/
        module = _execute_file(module_name, Path(file))
    found = _find_in(module, name, version)
    if found is None:
        raise LookupError(f"{module_name} has no workflow {name} version {version} any more")
    return found


def _find_in(module: ModuleType, name: str, version: str) -> Workflow | None:
    from ledger.workflows import Workflow

    for value in list(vars(module).values()):
        if isinstance(value, Workflow) and (value.name, value.version) == (name, version):
            return value
    return None


def _ensure_loaded() -> None:
    if not _loaded:
        load_all()


def _list_named_modules() -> list[str]:
    given = getattr(settings, "LONGWATCH_WORKFLOWS", ())
    names = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in names if name.strip()]


def _find_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except Exception as error:  # a broken parent package
        _record_error(name, error)
        return False


def _load_module(name: str) -> None:
    module = _import_recorded(name)
    if module is None:
        return
    _register_from(name, module)
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not info.name.startswith("_"):
            _load_module(f"{name}.{info.name}")


def _import_recorded(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() in a module must not stop the fleet
        _record_error(name, error)
        return None


def _load_file(path: Path) -> None:
    """Import one file of ./workflows/ as `workflows.NAME`, whatever other `workflows` exist."""
    name = f"workflows.{path.stem}"
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != str(path):
        try:
            module = _execute_file(name, path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            _record_error(str(path), error)
            return
    _register_from(str(path), module)


def _execute_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _register_from(name: str, module: ModuleType) -> None:
    from ledger.workflows import Workflow

    for value in list(vars(module).values()):
        if isinstance(value, Workflow):
            try:
                register(value)
            except ValueError as error:
                _record_error(name, error)


def _record_error(name: str, error: BaseException) -> None:
    load_errors[name] = clean_text(f"{type(error).__name__}: {error}", 2_000)
    logger.error("Workflows of %s are not known: %s", name, load_errors[name], exc_info=error)


AGENT = "longwatch_agent"
"""The attribute of a step's function that says that an agent runs in it."""


def runs_agent(task: Task) -> bool | None:
    """Whether an agent works on the task, or a step of its workflow is an agent's; None when this
    process does not know the workflow."""
    if isinstance(task.progress, dict) and KEY in task.progress:
        return True
    try:
        found = get(task.workflow, task.workflow_version)
    except UnknownWorkflow:
        return None
    return any(hasattr(step.fn, AGENT) for step in found.steps)
