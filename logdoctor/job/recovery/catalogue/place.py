"""One entry of a checkpoint folder, which each reader examines in turn."""

import os
from functools import cached_property
from itertools import islice
from pathlib import Path

from logdoctor.job.recovery.catalogue.archives import cut_off
from logdoctor.job.recovery.catalogue.checkpoint import Checkpoint, Framework
from logdoctor.job.recovery.catalogue.files import MOST_FILES, Tree, stat_of, tree

_GLANCE = 2000  # names that tell what a folder is
_SAVED = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


class Place:
    """An entry of a checkpoint folder, examined up to `most` files. `beside` are the names of all entries."""

    def __init__(self, folder: Path, name: str, beside: frozenset[str], most: int = MOST_FILES) -> None:
        self.folder, self.name, self.beside, self.most = folder, name, beside, most
        self.path = folder / name
        self.is_folder = self.path.is_dir()

    @cached_property
    def names(self) -> frozenset[str]:
        """Return enough names in the folder to tell what it is."""
        try:
            with os.scandir(self.path) as listing:
                return frozenset(entry.name for entry in islice(listing, min(_GLANCE, self.most)))
        except OSError:
            return frozenset()

    @cached_property
    def tree(self) -> Tree:
        """Return the files of the folder, or the file itself under the name ""."""
        if self.is_folder:
            return tree(self.path, self.most)
        found = stat_of(self.path)
        return Tree(self.path, {"": found} if found else {})

    @property
    def looked_at(self) -> int:
        """Return how many names have been read so far."""
        known = vars(self)
        return len(known.get("names", ())) + (self.tree.seen if "tree" in known else 0)

    def checkpoint(self, framework: Framework, step: int | None, **known: object) -> Checkpoint:
        """Return it as a checkpoint, with its size and (unless given) its last write."""
        tree = self.tree
        notes: tuple[str, ...] = known.pop("notes", ())  # type: ignore[assignment]
        if not tree.whole:
            notes += (f"it has more than {len(tree.files):,} files: some were not looked at",)
        known.setdefault("saved_at", tree.written)
        whole = {"folder": str(self.folder), "name": self.name, "path": str(self.path), "bytes": tree.bytes}
        return Checkpoint(**whole, framework=framework, step=step, notes=notes, **known)  # type: ignore[arg-type]


def first_cut_off(tree: Tree) -> str:
    """Return which torch or safetensors file is not whole, and why; "" when all are."""
    for name, found in tree.files.items():
        if name.endswith(_SAVED) and (why := cut_off(tree.root / name, found)):
            return f"{name} {why}"
    return ""


def first(*checks: str) -> str:
    """Return the first non-empty reason; "" without one."""
    return next((why for why in checks if why), "")
