"""Refuse code that changes files beside `logdoctor/safe/lasting_files.py`, in packages that work in folders of others.

`python tests/file_calls.py` prints each place and exits with 1 if there is one. A call with a `dir_fd` is none: that
folder was opened without links. One of fsspec is: its store may be a folder. `EXCEPTIONS` are the others that are
right, each with its reason.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "logdoctor"
PLACES = (
    "checkpoint/**/*.py",
    "job/**/*.py",
    "safe/mirror_files.py",
    "store/keeping/backup.py",
    "store/log/objects.py",
)
MODULES = {"os", "shutil"}
CHANGES = {"chmod", "hardlink_to", "mkdir", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text"}
OF_MODULES = {"chown", "copy", "copy2", "copyfile", "copytree", "link", "mkfifo", "move", "remove"}
OF_MODULES |= {"removedirs", "renames", "rmtree", "symlink", "truncate", "utime"}
OF_FSSPEC = {"cp_file", "get_file", "makedirs", "pipe_file", "put_file", "rm", "rm_file"}
WRITING = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}

EXCEPTIONS = {
    "checkpoint/lease.py put": "a manifest must not find its place once its folder lost its name: that fences writers",
    "checkpoint/writing.py Folder._begin": "the folder of a save, which must not be there yet",
    "job/recovery/__main__.py _alone.ended": "a temporary folder of this process",
    "job/recovery/catalogue/mirrored.py _place": "a temporary folder of this process",
    "job/send/child.py _fill": "/dev/null",
    "safe/mirror_files.py InStore.make": "what a server writes is not of this machine",
    "safe/mirror_files.py InStore.put": "what a server writes is not of this machine",
    "safe/mirror_files.py InStore.remove": "what a server writes is not of this machine",
    "safe/mirror_files.py InStore.write": "what a server writes is not of this machine",
    "store/keeping/backup.py of_sqlite": "a new folder that this user has just made and named on the command line",
    "store/keeping/backup.py put_back": "a new folder that this user has just made and named on the command line",
    "store/keeping/backup.py _put_back": "a new folder that this user has just made and named on the command line",
}


def _is_change(call: ast.Call) -> bool:
    """Whether a call changes files by their path."""
    if any(word.arg in ("dir_fd", "src_dir_fd") for word in call.keywords):
        return False
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "rmtree" or (function.id == "open" and _is_writing(call))
    if not isinstance(function, ast.Attribute):
        return False
    of_module = isinstance(function.value, ast.Name) and function.value.id in MODULES
    if function.attr == "open":
        return _is_writing(call) if not of_module else not _only_reads(call)
    if function.attr in ("replace", "rename"):
        return of_module or (len(call.args) == 1 and not call.keywords)
    return function.attr in CHANGES | OF_FSSPEC or (of_module and function.attr in OF_MODULES)


def _is_writing(call: ast.Call) -> bool:
    given = [*call.args[:2], *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


def _only_reads(call: ast.Call) -> bool:
    flags = {node.attr for each in call.args for node in ast.walk(each) if isinstance(node, ast.Attribute)}
    return "O_RDONLY" in flags and not flags & WRITING


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each such call, and the qualified name of the function that makes it."""

    def visit(node: ast.AST, inside: str) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call) and _is_change(node):
            yield node.lineno, inside
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(text), "")


def main() -> int:
    """Print what is found, and exceptions that are none any more; 1 if something is."""
    unused, places = set(EXCEPTIONS), []
    for path in sorted(path for place in PLACES for path in ROOT.glob(place)):
        module = path.relative_to(ROOT)
        for line, inside in found(path.read_text(encoding="utf-8")):
            unused.discard(f"{module} {inside}")
            if f"{module} {inside}" not in EXCEPTIONS:
                places.append(
                    f"logdoctor/{module}:{line}: {inside} changes a file by its path: use lasting_files.Folder"
                )
    places += [f"tests/file_calls.py: {name} is no exception any more" for name in sorted(unused)]
    print("\n".join(places) or "files are changed through logdoctor/safe/lasting_files.py")
    return bool(places)


if __name__ == "__main__":
    sys.exit(main())
