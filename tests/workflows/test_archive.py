"""Archives: what is kept, what is refused, and that equal trees are equal bytes."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness_site.workflows.shared.archive import Bounds, Refused, pack
from harness_site.workflows.shared.archive import unpack as unpack_open
from harness_site.workflows.shared.tree import list_files

SMALL = Bounds(files=5, file_bytes=2_000_000, total_bytes=3_000_000)

ODD_TREE = {
    "pkg/plain.py": (b"x = 1\n", 0o644),
    "pkg/no newline.py": (b"x = 1", 0o644),
    "pkg/crlf.py": (b"x = 1\r\ny = 2\r\n", 0o644),
    "pkg/bom.py": (b"\xef\xbb\xbfx = 1\n", 0o644),
    "pkg/latin.py": (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", 0o600),
    "pkg/caf\u00e9 \u65e5\u672c.py": (b"", 0o644),
    "bin/run me": (b"#!/bin/sh\n", 0o755),
    "pkg/" + "n" * 120 + ".py": (b"long = True\n", 0o640),
}


def add(tar: tarfile.TarFile, name: str, content: bytes = b"x", **facts: object) -> None:
    """Put a member with any name and kind into a tar file."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content))


def make_tar(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    """A .tar.gz of members given by name and by what differs from a plain file."""
    with tarfile.open(path, "w:gz") as tar:
        for name, facts in members:
            add(tar, name, **facts)
    return path


def make_zip(path: Path, *members: tuple[str, bytes, int]) -> Path:
    """A .zip of members given by name, content and the whole st_mode."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content, mode in members:
            info = zipfile.ZipInfo("placeholder")
            info.filename = info.orig_filename = name
            info.create_system, info.external_attr = 3, mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(info, content)
    return path


def unpack(archive: Path, target: Path, bounds: Bounds | None = None) -> int:
    with archive.open("rb") as file:
        return unpack_open(file, target, bounds)


def write_tree(root: Path, tree: dict[str, tuple[bytes, int]]) -> Path:
    for name, (content, mode) in tree.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
    return root


def read_back(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        name: ((root / name).read_bytes(), stat.S_IMODE((root / name).stat().st_mode))
        for name in list_files(root)
    }


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_content_names_and_modes_are_kept_exactly(tmp_path: Path, kind: str) -> None:
    if kind == "zip":
        archive = make_zip(
            tmp_path / "a.zip",
            *((name, content, stat.S_IFREG | mode) for name, (content, mode) in ODD_TREE.items()),
        )
    else:
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
            for name, (content, mode) in ODD_TREE.items():
                add(tar, name, content, mode=mode)
        archive = tmp_path / "a.tar.gz"
    assert unpack(archive, tmp_path / "out") == len(ODD_TREE)
    assert read_back(tmp_path / "out") == ODD_TREE


def test_a_packed_tree_comes_back_and_depends_on_nothing_else(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tree(tmp_path / name, ODD_TREE)
        for number, path in enumerate(list_files(tmp_path / name)):
            os.utime(tmp_path / name / path, (number, number + len(name) * 1000))
        pack(tmp_path / name, tmp_path / f"{name}.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()
    unpack(tmp_path / "one.tar.gz", tmp_path / "out")
    assert read_back(tmp_path / "out") == ODD_TREE
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, 0, "", "")}


def test_folders_and_dot_prefixes_are_taken(tmp_path: Path) -> None:
    archive = make_tar(
        tmp_path / "a.tar.gz",
        ("./", {"type": tarfile.DIRTYPE, "content": b""}),
        ("./pkg", {"type": tarfile.DIRTYPE, "content": b"", "mode": 0}),
        ("./pkg//a.py", {}),
    )
    assert unpack(archive, tmp_path / "out") == 1
    assert list_files(tmp_path / "out") == ["pkg/a.py"]


def test_special_permission_bits_are_dropped(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar.gz", ("a", {"mode": 0o6755}), ("b", {"mode": 0o000}))
    unpack(archive, tmp_path / "out")
    modes = {name: mode for name, (_, mode) in read_back(tmp_path / "out").items()}
    assert modes == {"a": 0o755, "b": 0o644}


LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "content": b""}
BAD_NAMES = {
    "parent": ("../evil", "would leave the folder"),
    "hidden parent": ("pkg/../../evil", "would leave the folder"),
    "absolute": ("/etc/evil", "absolute path"),
    "backslash": ("..\\evil", "backslash"),
    "newline": ("a\nb", "control character"),
    "git": ("pkg/.GIT/config", "belongs to a git repository"),
    "deep": ("/".join("a" * 50), "is too long"),
    "long": ("a/" + "b" * 256, "is too long"),
    "not utf-8": ("caf\udce9", "is not UTF-8"),
    "nothing": ("./.", "without a name"),
}


@pytest.mark.parametrize("case", BAD_NAMES)
def test_a_bad_name_is_refused_in_a_tar(tmp_path: Path, case: str) -> None:
    name, why = BAD_NAMES[case]
    with pytest.raises(Refused, match=why):
        unpack(make_tar(tmp_path / "a.tar.gz", (name, {})), tmp_path / "out")
    assert list_files(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("case", sorted(BAD_NAMES.keys() - {"not utf-8"}))
def test_a_bad_name_is_refused_in_a_zip(tmp_path: Path, case: str) -> None:
    name, why = BAD_NAMES[case]
    with pytest.raises(Refused, match=why):
        unpack(make_zip(tmp_path / "a.zip", (name, b"x", 0o100644)), tmp_path / "out")
    assert list_files(tmp_path) == ["a.zip"]


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", ("evil.py_.txt", b"x", 0o100644))
    archive.write_bytes(archive.read_bytes().replace(b"evil.py_", b"evil.py\0"))
    with pytest.raises(Refused, match="control character"):
        unpack(archive, tmp_path / "out")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "ok", pax_headers={"path": "evil\0.py"})
    with pytest.raises(Refused, match=r"control character|damaged"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (LINK, "is a link"),
        (LINK | {"linkname": "pkg/a.py"}, "is a link"),
        ({"type": tarfile.LNKTYPE, "linkname": "pkg/a.py", "content": b""}, "is a link"),
        ({"type": tarfile.CHRTYPE, "devmajor": 1, "content": b""}, "is a device"),
        ({"type": tarfile.BLKTYPE, "content": b""}, "is a device"),
        ({"type": tarfile.FIFOTYPE, "content": b""}, "is a device"),
        ({"type": b"Z"}, "is a device"),
    ],
)
def test_what_is_no_file_and_no_folder_is_refused(
    tmp_path: Path, facts: dict[str, object], why: str
) -> None:
    archive = make_tar(tmp_path / "a.tar.gz", ("pkg/a.py", {}), ("pkg/b", facts))
    with pytest.raises(Refused, match=f"pkg/b {why}"):
        unpack(archive, tmp_path / "out")


def test_a_link_can_not_redirect_a_later_member(tmp_path: Path) -> None:
    archive = make_tar(
        tmp_path / "a.tar.gz", ("d", LINK | {"linkname": str(tmp_path)}), ("d/evil", {})
    )
    with pytest.raises(Refused, match="d is a link"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_a_zip_with_a_special_file_is_refused(tmp_path: Path, kind: int) -> None:
    archive = make_zip(tmp_path / "a.zip", ("a", b"/etc/passwd", kind | 0o777))
    with pytest.raises(Refused, match="a is a link or a special file"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("second", ["pkg/a", "./pkg//a", "pkg/a/b", "pkg"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_two_members_of_one_path_are_refused(tmp_path: Path, second: str, kind: str) -> None:
    if kind == "zip":
        members = [("pkg/a", b"1", 0o100644), (second, b"2", 0o100644)]
        with pytest.warns(UserWarning, match="Duplicate") if second == "pkg/a" else io.BytesIO():
            archive = make_zip(tmp_path / "a", *members)
    else:
        archive = make_tar(tmp_path / "a", ("pkg/a", {}), (second, {}))
    with pytest.raises(Refused, match=r"in it twice|both a file and a folder"):
        unpack(archive, tmp_path / "out")


def make_big_tar(path: Path) -> Path:
    return make_tar(path, ("big", {"content": bytes(2_500_000)}))


def make_many_tar(path: Path) -> Path:
    return make_tar(path, *((f"f{n}", {}) for n in range(6)))


def make_many_folders(path: Path) -> Path:
    return make_tar(
        path, *((f"f{n}", {"type": tarfile.DIRTYPE, "content": b""}) for n in range(20)), ("a", {})
    )


def make_total_tar(path: Path) -> Path:
    return make_tar(path, *((f"f{n}", {"content": os.urandom(1_000_000)}) for n in range(4)))


def make_ratio_tar(path: Path) -> Path:
    return make_tar(path, ("a", {"content": bytes(1_500_000)}))


def make_ratio_zip(path: Path) -> Path:
    return make_zip(path, ("a", bytes(1_500_000), 0o100644))


def make_many_zip(path: Path) -> Path:
    return make_zip(path, *((f"f{n}", b"", 0o100644) for n in range(6)))


def make_header_bomb(path: Path) -> Path:
    """One extended header of two megabytes, which a reader would take in whole."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "a", pax_headers={"comment": os.urandom(1_000_000).hex()})
    return path


def make_sparse_tar(path: Path) -> Path:
    """A sparse file: a terabyte of nothing in half a kilobyte."""
    info = tarfile.TarInfo("sparse")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:398] = b"00000000000\0"
    header[398:410] = b"00000000000\0"
    header[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    return path


def make_loop_tar(path: Path) -> Path:
    """A negative size, which sends a naive reader back to the same header for ever."""
    header = bytearray(tarfile.TarInfo("loop").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" + (-512).to_bytes(11, "big", signed=True)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    return path


def make_truncated(path: Path) -> Path:
    make_tar(path, ("a", {"content": os.urandom(100_000)}))
    path.write_bytes(path.read_bytes()[:-5000])
    return path


def make_bad_crc_zip(path: Path) -> Path:
    make_zip(path, ("a", os.urandom(5000), 0o100644))
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    return path


def make_encrypted_zip(path: Path) -> Path:
    make_zip(path, ("a", b"secret", 0o100644))
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    return path


def make_nothing(path: Path) -> Path:
    return make_tar(path)


def make_text(path: Path) -> Path:
    path.write_text("import os\n")
    return path


def make_plain_gzip(path: Path) -> Path:
    path.write_bytes(gzip.compress(b"no tar at all" * 100))
    return path


BOMBS: list[tuple[Callable[[Path], Path], str]] = [
    (make_big_tar, "more than"),
    (make_many_tar, "more than 5 files"),
    (make_many_folders, "more than 5 files"),
    (make_total_tar, "unpacks to more than"),
    (make_ratio_tar, "200 times its size"),
    (make_ratio_zip, "200 times its size"),
    (make_many_zip, "more than 5 files"),
    (make_header_bomb, "header of more than a megabyte"),
    (make_sparse_tar, "special file"),
    (make_loop_tar, "negative size|damaged|twice"),
    (make_truncated, "damaged"),
    (make_bad_crc_zip, "damaged"),
    (make_encrypted_zip, "is encrypted"),
    (make_nothing, "holds no files"),
    (make_text, "neither a .tar.gz nor a .zip"),
    (make_plain_gzip, "damaged"),
]


@pytest.mark.parametrize(("make", "why"), BOMBS, ids=lambda case: getattr(case, "__name__", ""))
def test_bombs_and_damage_are_refused(
    tmp_path: Path, make: Callable[[Path], Path], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        unpack(make(tmp_path / "archive"), tmp_path / "out", SMALL)


def test_a_zip_directory_of_a_million_entries_is_refused_before_it_is_read(tmp_path: Path) -> None:
    make_zip(tmp_path / "a.zip", ("a", b"x", 0o100644))
    with (tmp_path / "a.zip").open("ab") as file:
        file.write((b"PK\x01\x02" + bytes(42)) * 20_000)
    with pytest.raises(Refused, match="more than 10,000 entries"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
