"""The composition root: settings in, working parts out. Nothing else constructs them.

What serves is imported inside the functions, because the command line diagnoses without it.
"""

import errno
import os
import secrets
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from logdoctor.errors import SettingsError, StoreError
from logdoctor.pipeline import Limits
from logdoctor.rules.check import require
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import (
    PREFIX,
    Settings,
    cache_folder,
    data_folder,
    llm_key,
    prompts_folder,
    rules_folder,
)

if TYPE_CHECKING:
    from logdoctor.learn.guards import Guards
    from logdoctor.learn.log_agent import LogAgent
    from logdoctor.learn.model import ModelAgent
    from logdoctor.live.service import Plan, Service
    from logdoctor.store.learned import LearnedRules
    from logdoctor.store.records import Records


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


def database_url(settings: Settings) -> str:
    """The URL of the records, whose folder exists then."""
    return settings.database_url or f"sqlite:///{made_folder(settings) / 'logdoctor.db'}"


def made_folder(settings: Settings) -> Path:
    """The data folder, made when it was not there; `StoreError` when it cannot be used."""
    folder = data_folder(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")
    except OSError as error:
        next_step = "Choose another with --data-dir or LOGDOCTOR_DATA_DIR."
        raise StoreError(str(folder), f"cannot be used as data folder ({error.strerror})", next_step) from error
    return folder.resolve()


def records(settings: Settings) -> "Records":
    """The records alone, for commands that work beside a service."""
    from logdoctor.store.records import Records

    return Records(database_url(settings))


def plan(settings: Settings) -> "Plan":
    """How the service is to work."""
    from logdoctor.live.intake import Bounds
    from logdoctor.live.retention import Rules
    from logdoctor.live.service import Plan
    from logdoctor.live.watch import Timing

    return Plan(
        database_url(settings),
        Bounds(
            settings.max_stream_bytes,
            settings.max_streams,
            settings.max_open_streams,
            behind=24 << 20,
            late=settings.scan_seconds + 0.1,
            journal_bytes=settings.journal_bytes,
            unarchived=8 * settings.journal_bytes,
        ),
        Timing(
            settings.scan_seconds,
            settings.quiet_seconds,
            settings.hang_seconds,
            settings.linger_seconds,
            settings.abandon_seconds,
        ),
        Rules(settings.retention_days * 86_400, settings.retention_bytes, every=600.0),
        settings.min_free_bytes,
        settings.learn_recheck,
    )


def service(settings: Settings) -> "Service":
    """The live service over the data folder; not yet started."""
    from logdoctor.live.service import Service

    compiled = scanner(settings)
    learning = None if settings.learn == "off" else partial(log_agent, settings, compiled)
    return Service(made_folder(settings), compiled, plan(settings), learning)


def learned_rules(settings: Settings) -> "LearnedRules":
    """The learned rules of the data folder, for commands that work beside a service."""
    from logdoctor.store.learned import LearnedRules

    return LearnedRules(records(settings).database)


def guards(settings: Settings, book: RuleBook, records: "Records") -> "Guards":
    """What no learned rule may take: all causes that are known, and all evidence that a verdict ever cited."""
    from logdoctor.learn.canary import causes
    from logdoctor.learn.guards import Guards
    from logdoctor.learn.life import quotes

    past: list[str] = []
    last = 0
    while page := records.evidence_after(last, 1000):
        past += [line for _, evidence in page for line in quotes(evidence)]
        last = page[-1][0]
    return Guards(causes(book, rules_folder(settings) / "canary"), past)


def log_agent(settings: Settings, scanner: Scanner, records: "Records", rules: "LearnedRules") -> "LogAgent":
    """Who learns filter rules: a model when one is set, else the miner. `SettingsError` for one that is half set."""
    from logdoctor.learn.book import Books
    from logdoctor.learn.life import Terms
    from logdoctor.learn.log_agent import Limits, LogAgent
    from logdoctor.learn.miner import Miner

    by_model = settings.learn == "model" or (settings.learn == "auto" and bool(settings.llm_base_url))
    agent = model_agent(settings, rules) if by_model else Miner()
    terms = Terms(settings.learn_jobs, settings.learn_lines)
    learning = Limits(settings.learn_runs, terms)
    return LogAgent(Books(scanner, rules), rules, agent, guards(settings, scanner.book, records), learning)


def unlearned(settings: Settings) -> tuple[Scanner, "Guards"]:
    """The diagnosis rules without filter rules, and what no learned rule may take: to measure how well is learned."""
    from logdoctor.learn.canary import causes
    from logdoctor.learn.guards import Guards

    book = rule_book(settings)
    scanner = Scanner(book.without_filters(), cache_folder(settings))
    return scanner, Guards(causes(book, rules_folder(settings) / "canary"))


def model_agent(settings: Settings, rules: "LearnedRules") -> "ModelAgent":
    """The Log Agent that asks the model of the settings, within its budget."""
    from logdoctor.learn.model import ModelAgent
    from logdoctor.llm.langchain import LangChainModel
    from logdoctor.llm.spending import Budget, Guarded

    for name in ("llm_base_url", "llm_model"):
        if not getattr(settings, name):
            variable = f"{PREFIX}{name.upper()}"
            raise SettingsError(variable, "is not set, but a model is to be asked", "Set it, or LOGDOCTOR_LEARN=miner.")
    model = LangChainModel(
        settings.llm_base_url, settings.llm_model, llm_key(settings), settings.llm_output, settings.llm_seconds
    )
    budget = Budget(
        settings.llm_calls_per_job,
        settings.llm_calls_per_hour,
        settings.llm_tokens_per_hour,
        settings.llm_dollars_in,
        settings.llm_dollars_out,
    )
    return ModelAgent(Guarded(model, rules, budget), prompts_folder(settings))


def session_key(folder: Path) -> str:
    """The key that signs browser sessions, made once."""
    path = folder / "session.key"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text()
