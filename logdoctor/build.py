"""The composition root: settings in, working parts out. Nothing else constructs them."""

import os
from contextlib import suppress

from logdoctor.pipeline import Limits
from logdoctor.rules.check import require
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, cache_folder, rules_folder


def rule_book(settings: Settings) -> RuleBook:
    """The rules of the folder that the settings name; `RuleError` when one is wrong."""
    return load_book(rules_folder(settings), cache_folder(settings))


def scanner(settings: Settings) -> Scanner:
    """The compiled rules, checked; `RuleError` names the first that is wrong.

    A rule book is checked when it is first used; that it passed is remembered in the cache under its digest.
    """
    compiled = unchecked_scanner(settings)
    passed = cache_folder(settings) / f"{compiled.book.digest}.checked"
    if not os.path.exists(passed):  # False, too, for a cache that may not be entered
        require(compiled.book, compiled)
        with suppress(OSError):  # a cache that cannot be written is no error
            passed.touch()
    return compiled


def unchecked_scanner(settings: Settings) -> Scanner:
    """The compiled rules as they are: for those who look for what is wrong with them."""
    return Scanner(rule_book(settings), cache_folder(settings))


def limits(settings: Settings) -> Limits:
    """How a log is read."""
    return Limits(settings.block_bytes, settings.workers, settings.max_decompressed_bytes, settings.max_expansion)
