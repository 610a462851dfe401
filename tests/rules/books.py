"""Small rule books for tests: rules as YAML files below a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scan, Scanner

ORIGIN = {"by": "a person", "at": "2026-01-01", "source": "a test"}


def filter_rule(name: str, pattern: str, **more: Any) -> dict[str, Any]:
    """A filter rule whose example is `more["must_match"]`, or else the pattern itself."""
    return {
        "id": f"filter/{name}",
        "kind": "filter",
        "status": "active",
        "title": name,
        "patterns": [pattern],
        "must_match": [pattern],
        "origin": ORIGIN,
    } | more


def diagnosis(name: str, pattern: str, **more: Any) -> dict[str, Any]:
    """A diagnosis rule; `unless`, `reason` and `role` go where they belong."""
    when = {"any": more.pop("any", [pattern]), "unless": more.pop("unless", [])}
    verdict = {"reason": more.pop("reason", "CUDA Error"), "role": more.pop("role", "cause")}
    return {
        "id": f"diagnosis/{name}",
        "kind": "diagnosis",
        "status": "active",
        "title": name,
        "when": when,
        "verdict": verdict,
        "must_match": [{"text": pattern}],
        "origin": ORIGIN,
    } | more


def write_rules(root: Path, *rules: dict[str, Any]) -> Path:
    """The folder, with these rules in it."""
    (root / "knowledge").mkdir(parents=True, exist_ok=True)
    for rule in rules:
        path = root / f"{rule['id']}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(rule), encoding="utf-8")
    return root


def small_book(root: Path, *rules: dict[str, Any]) -> RuleBook:
    return load_book(write_rules(root, *rules))


def small_scanner(root: Path, *rules: dict[str, Any]) -> Scanner:
    return Scanner(small_book(root, *rules))


def scan_line(scanner: Scanner, line: str) -> Scan:
    return scanner.scan(line.encode(), np.empty(0, np.int64))


def owner_of(scanner: Scanner, line: str) -> str | None:
    """The id of the filter rule that takes a line."""
    owner = int(scan_line(scanner, line).owner[0])
    return scanner.book.filters[owner].id if owner >= 0 else None


def evidence_of(scanner: Scanner, line: str) -> list[str]:
    """The ids of the diagnosis rules that a line is evidence for."""
    return [scanner.book.diagnoses[int(rule)].id for rule in scan_line(scanner, line).evidence[:, 1]]
