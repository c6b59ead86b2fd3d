"""A task's files: a folder while a unit runs, a manifest and blobs at each checkpoint.

The manifest lists every path with its mode and digest; it is a blob itself, and its digest on the
task row is the workspace. Before a step sees its folder, the folder is made equal to the manifest
byte for byte, by hashing what lies there, so nothing that a half-done unit, a former holder or a
process left behind changed can reach the next unit. What the author has ignored is left alone.

`trees` is a manifest as data, `scanning` reads a folder into one and `restoring` writes one out;
`folders` says where on this host, `preparing` sets a rebuilt folder up with what its command makes,
`folder` puts all of it together for a unit.
"""

from ledger.workspaces.commands import SetupFailed
from ledger.workspaces.folder import TaskFolder
from ledger.workspaces.folders import NoRoom, release_folder
from ledger.workspaces.restoring import remove_tree, restore_tree
from ledger.workspaces.scanning import scan_tree
from ledger.workspaces.trees import Entry, Tree, WorkspaceRefused, read_manifest, write_manifest

__all__ = [
    "Entry",
    "NoRoom",
    "SetupFailed",
    "TaskFolder",
    "Tree",
    "WorkspaceRefused",
    "read_manifest",
    "release_folder",
    "remove_tree",
    "restore_tree",
    "scan_tree",
    "write_manifest",
]
