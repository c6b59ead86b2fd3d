"""A tree that is installed beside the workers."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

from harness_site.workflows.shared.archive import Bounds, Refused


def find_distribution(name: str) -> metadata.Distribution:
    """The installed distribution. Raises ValueError."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ValueError(f"no distribution named {name!r} is installed here") from None


def copy_distribution(name: str, target: Path, bounds: Bounds | None = None) -> str:
    """Copy what a distribution installed as importable, and return its name with its version.

    Its metadata, scripts and bytecode are left out. Raises Refused.
    """
    bounds = bounds or Bounds()
    distribution = find_distribution(name)
    files = total = 0
    for file in distribution.files or ():
        first = file.parts[0]
        if first in {"..", "/", "__pycache__"} or first.endswith((".dist-info", ".pth")):
            continue
        source = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or file.suffix == ".pyc" or not source.is_file():
            continue
        files, total = files + 1, total + source.stat().st_size
        if files > bounds.files or total > bounds.total_bytes:
            raise Refused(
                f"it has more than {bounds.files:,} files or {bounds.total_bytes:,} bytes"
            )
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / file)
        (target / file).chmod(source.stat().st_mode & 0o777 | 0o600)
    if not files:
        raise Refused("it has no files of its own; was it installed in editable mode?")
    return f"{distribution.name} {distribution.version}"
