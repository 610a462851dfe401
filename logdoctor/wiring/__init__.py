"""The composition root: it alone builds the working parts, from the settings.

The parts for diagnosis by rules are here. All others are in the modules of this package, to be imported where needed,
because they need libraries of the extras, or take long to import.
"""

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from logdoctor.pipeline import ReadLimits
from logdoctor.rules.check import digests, require
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.safe import cache_files
from logdoctor.settings import Settings, cache_folder, rules_folder

_PASSED = 20  # rule books whose passed checks are cached


def rule_book(settings: Settings) -> RuleBook:
    """Return the rules in the folder of the settings; `RuleError` when one is wrong."""
    return load_book(rules_folder(settings), cache_folder(settings), settings.more_rules)


def scanner(settings: Settings) -> Scanner:
    """Return the checked rules; `RuleError` names the first wrong one.

    The shipped rules were checked before they were shipped. Another folder is checked on first use: only what it adds
    to them, or to rules that passed here before; all of it, if it changes or lacks any. The cache remembers that.
    """
    compiled = unchecked_scanner(settings)
    passed = cache_folder(settings) / f"{compiled.book.digest}.passed"
    if not os.path.exists(passed):  # False also for a cache folder without access
        if settings.rules or settings.more_rules:
            require(compiled.book, compiled, trusted(settings, digests(compiled.book)))
        cache_files.write(passed, "\n".join(sorted(digests(compiled.book))).encode())
        with suppress(OSError):
            for old in _passed(passed.parent)[:-_PASSED]:
                old.unlink(missing_ok=True)
    return compiled


@lru_cache(maxsize=1)
def kept_scanner(settings: Settings) -> Scanner:
    """Return the scanner of the last settings, for repeated diagnoses: its files are read once."""
    return scanner(settings)


def trusted(settings: Settings, now: frozenset[str]) -> frozenset[str]:
    """Return the digests of rules that passed the check together, all among `now`. They are of the last ones that
    passed on this machine, else the shipped ones."""
    for path in reversed(_passed(cache_folder(settings))):
        if (known := frozenset((cache_files.read(path) or b"").decode("utf-8", "replace").split())) and known <= now:
            return known
    return digests(rule_book(Settings(cache_dir=settings.cache_dir)))


def _passed(cache: Path) -> list[Path]:
    """Return the cache's files about passed checks, latest last."""
    return sorted(cache.glob("*.passed"), key=lambda path: path.stat().st_mtime)


def unchecked_scanner(settings: Settings) -> Scanner:
    """Return the compiled rules unchecked, for commands that look for their problems."""
    return Scanner(rule_book(settings), cache_folder(settings))


def undiagnosing(settings: Settings) -> Scanner:
    """Return the filter rules without diagnosis rules, to measure learning from nothing."""
    scanner = unchecked_scanner(settings)
    return Scanner(RuleBook(scanner.book.filters, rules_folder(settings) / "knowledge"), scanner.cache)


def limits(settings: Settings) -> ReadLimits:
    """Return the limits on reading a log."""
    return ReadLimits(settings.block_bytes, settings.workers, settings.max_decompressed_bytes, settings.max_expansion)
