"""Build the Log Agent, which learns filter rules, and its guards."""

from collections.abc import Callable

from logdoctor import wiring
from logdoctor.learning.filters.agent import LearningLimits, LogAgent
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.canary import causes
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import WatchTerms, quotes
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.model import ModelAgent
from logdoctor.learning.filters.proposal import Agent
from logdoctor.llm.spending import Guarded
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, prompts_folder, rules_folder
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls
from logdoctor.wiring.models import Model


def log_agent(
    settings: Settings, scanner: Scanner, records: Records, rules: LearnedRules, model: Model | None = None
) -> LogAgent:
    """Return the learner of filter rules: the miner, the model, or an advised miner. `SettingsError` for a model with
    missing settings."""

    def asked() -> Guarded:
        return (model or Model(settings))(ModelCalls(records.database), Exchanges(records.database))

    writer, adviser = rule_writers(settings, asked)
    terms = WatchTerms(settings.learn_jobs, settings.learn_lines)
    learning = LearningLimits(settings.learn_runs, terms)
    guarding = guards(settings, scanner.book, records)
    return LogAgent(Books(scanner, rules), rules, writer, guarding, learning, adviser)


def rule_writers(settings: Settings, model: Callable[[], Guarded]) -> tuple[Agent, Agent | None]:
    """Return the writer of filter rules and its adviser. The model is constructed on first use."""
    if settings.learn == "model":
        return model_agent(settings, model()), None
    advised = settings.learn == "auto" and bool(settings.llm_base_url)
    return Miner(), model_agent(settings, model()) if advised else None


def model_agent(settings: Settings, model: Guarded) -> ModelAgent:
    """Return the Log Agent that asks a model."""
    return ModelAgent(model, prompts_folder(settings))


def guards(settings: Settings, book: RuleBook, records: Records) -> FilterGuards:
    """Return the guards of lines that no learned rule may remove. They are of all known causes, and all evidence ever
    cited."""
    past: list[str] = []
    last = 0
    while page := records.evidence_after(last, 1000):
        past += [line for _, evidence in page for line in quotes(evidence)]
        last = page[-1][0]
    return FilterGuards(known_causes(settings, book), past)


def known_causes(settings: Settings, book: RuleBook) -> tuple[str, ...]:
    """Return lines of all known causes, which no learned rule may remove."""
    return tuple(causes(book, rules_folder(settings) / "canary"))


def unlearned(settings: Settings) -> tuple[Scanner, FilterGuards]:
    """Return the diagnosis rules without filter rules, and guards, to measure learning."""
    scanner = wiring.unchecked_scanner(settings)
    book = scanner.book
    return Scanner(book.without_filters(), scanner.cache), FilterGuards(causes(book, rules_folder(settings) / "canary"))
