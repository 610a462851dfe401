"""Refuse tests of `make test` that sleep or compare how long something took: a busy machine fails them by chance.

`python tests/wall_clock.py` prints each place and exits with 1 if there is one. Stories (`story_*.py`) may do both:
what the operating system times belongs to them. Time of the processor (`process_time`) may be compared anywhere.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _called(node: ast.AST) -> str:
    """Return the last name of what a call calls, or nothing."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _is_duration(node: ast.AST, durations: set[str]) -> bool:
    """Whether an expression holds a difference from a clock, or a name that such a difference was given."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id in durations:
            return True
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub) and _called(each.left) in CLOCKS:
            return True
    return False


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line, and what is wrong there, of each place of a module that looks at the wall clock."""
    tree = ast.parse(text)
    durations: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_duration(node.value, set()):
            durations |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if _called(node) == "sleep":
            yield (
                node.lineno,
                "sleeps: wait for a condition (tests/waiting.py), or block on an event that the test sets",
            )
        elif isinstance(node, ast.Compare) and any(isinstance(op, BOUNDS) for op in node.ops):
            if any(_is_duration(side, durations) for side in (node.left, *node.comparators)):
                yield node.lineno, "compares how long something took: assert an order, an event or a moved clock"


def main() -> int:
    """Print what is found in the tests that `make test` runs; 1 if something is."""
    places = [
        f"{path.relative_to(HERE.parent)}:{line}: {what}"
        for path in sorted(HERE.rglob("test_*.py"))
        if not {"soak", "gpu"} & set(path.relative_to(HERE).parts)
        for line, what in found(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(places) or "no test looks at the wall clock")
    return bool(places)


if __name__ == "__main__":
    sys.exit(main())
