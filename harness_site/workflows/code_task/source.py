"""Where the tree of a `code-task` comes from."""

from __future__ import annotations

import functools
from pathlib import Path

from harness_site.workflows.code_task.recorded import EXAMPLE, Recording, read_recording
from harness_site.workflows.shared.archive import Refused, name_after, unpack
from harness_site.workflows.shared.bundles import is_bundle, unpack_bundle
from harness_site.workflows.shared.originals import empty_folder, make_scratch
from ledger.artifacts import find_artifact
from ledger.canonical import clean_text
from ledger.context import Context
from ledger.errors import NotFound
from ledger.workflows import Fail


@functools.cache
def read_example() -> Recording:
    """The bundled example."""
    return read_recording(EXAMPLE)


def read_goal(ctx: Context) -> str:
    """What is to be done."""
    return read_example().goal if ctx.input.example else ctx.input.goal.strip()


def fetch_tree(ctx: Context) -> tuple[str, str]:
    """Fill the workspace; what to call the results, and the tree. Raises Fail."""
    root = ctx.workspace
    empty_folder(root)
    if ctx.input.example:
        for name, text in read_example().files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return "example", "the example"
    try:
        name = find_artifact(ctx.input.archive, ctx.task_id).name
        with ctx.open_artifact(ctx.input.archive) as content, make_scratch(ctx) as scratch:
            if is_bundle(content):
                unpack_bundle(content, root, scratch, tick=ctx.check)
            else:
                unpack(content, root)
            lift_project(root, scratch)
    except NotFound as error:
        raise Fail(
            "archive_refused", f"input.archive: there is no upload {ctx.input.archive}"
        ) from error
    except Refused as error:
        raise Fail("archive_refused", f"input.archive: {error}.") from error
    return name_after(name), clean_text(name, 100)


def lift_project(root: Path, scratch: Path) -> None:
    """Make the only folder of a source archive the root itself; a package stays one. `scratch` is
    a folder of the same file system."""
    entries = list(root.iterdir())
    if len(entries) != 1 or not entries[0].is_dir() or (entries[0] / "__init__.py").exists():
        return
    # Out of the way first: it may hold a folder of its own name.
    folder = entries[0].rename(scratch / "project")
    for path in folder.iterdir():
        path.rename(root / path.name)
