"""The composition root: settings in, working parts out. Nothing else constructs them."""

from logdoctor.pipeline import Limits
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, cache_folder, rules_folder


def rule_book(settings: Settings) -> RuleBook:
    """The rules of the folder that the settings name; `RuleError` when one is wrong."""
    return load_book(rules_folder(settings), cache_folder(settings))


def scanner(settings: Settings) -> Scanner:
    """The compiled rules."""
    return Scanner(rule_book(settings), cache_folder(settings))


def limits(settings: Settings) -> Limits:
    """How a log is read."""
    return Limits(settings.block_bytes, settings.workers, settings.max_decompressed_bytes, settings.max_expansion)
