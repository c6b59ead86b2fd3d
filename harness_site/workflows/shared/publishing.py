"""What a workflow that changed a tree hands out in the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness_site.workflows.shared.archive import pack
from harness_site.workflows.shared.originals import make_scratch
from harness_site.workflows.shared.tree import FileDiff, write_patch
from ledger.context import Context


def publish_change(
    ctx: Context, original: Path, diffs: Iterable[FileDiff], report: str
) -> list[str]:
    """Keep the patch from `original` to the workspace, the workspace as an archive, and the report
    (Markdown) as artifacts; their names."""
    name = ctx.progress["name"]
    with make_scratch(ctx) as made:
        patch, archive = made / "patch", made / "archive"
        with patch.open("wb") as out:
            write_patch(original, ctx.workspace, [diff.path for diff in diffs], out)
        pack(ctx.workspace, archive)
        ctx.save_artifact(f"{name}.patch", patch, "text/x-patch")
        ctx.save_artifact(f"{name}.tar.gz", archive, "application/gzip")
    ctx.save_artifact("report.md", report, "text/markdown")
    return [f"{name}.patch", "report.md", f"{name}.tar.gz"]
