"""Each library comes with the extra that its place in the code says."""

import tomllib
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from logdoctor.extras import EXTRAS

ROOT = Path(__file__).parents[1]


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def required(extra: str = "") -> list[Requirement]:
    """What pyproject.toml names for an extra, with what the extras that it names in turn bring."""
    found = [Requirement(line) for line in PROJECT["project"]["dependencies"]] if not extra else []
    for line in PROJECT["project"]["optional-dependencies"].get(extra, ()):
        one = Requirement(line)
        found += [each for name in one.extras for each in required(name)] if one.name == "logdoctor" else [one]
    return found


def closure(wanted: list[Requirement]) -> dict[str, Distribution]:
    """The installed distributions that are required, with all that they require."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for extra in ("", *one.extras):
            if (one.name, extra) in seen:
                continue
            seen.add((one.name, extra))
            found[canonicalize_name(one.name)] = installed = distribution(one.name)
            needed = (Requirement(line) for line in installed.requires or ())
            wanted += [each for each in needed if not each.marker or each.marker.evaluate({"extra": extra})]
    return found


def test_each_library_comes_with_its_extra() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    placed = {
        name for each in contracts for name in each.get("protected_modules", ()) if not name.startswith("logdoctor.")
    }
    placed -= {"lightning"}  # whoever saves its checkpoints with ours has it
    of_extra = {library: extra for extra, libraries in EXTRAS.items() for library in libraries}
    brought = {extra: set(closure(required(extra))) for extra in ("", *EXTRAS)}
    providers = packages_distributions()
    for library in placed:
        names = {canonicalize_name(name) for name in providers[library]}
        assert names & brought[of_extra.get(library, "")], library
        assert library not in of_extra or not names <= brought[""], f"{library} comes without an extra"
    assert set(of_extra) <= placed, "libraries of extras that nobody imports"
