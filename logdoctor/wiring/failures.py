"""Build the rungs above the rules: past cases, the Failure Agent, and the teacher."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from logdoctor.diagnose.episodes import summary
from logdoctor.failure_agent.agent import AgentLimits, FailureAgent, Similar
from logdoctor.failure_agent.cases.cases import Case, CaseLibrary, Neighbour
from logdoctor.failure_agent.cases.embedding import Embedder, SentenceEmbedder
from logdoctor.failure_agent.cases.vectors import ChromaVectors, warm
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.once import Agent, Memory, Once
from logdoctor.failure_agent.question import Question
from logdoctor.learning.diagnoses.confirming import naming
from logdoctor.learning.diagnoses.guards import DiagnosisGuards
from logdoctor.learning.diagnoses.model_writer import ModelWriter
from logdoctor.learning.diagnoses.teacher import Teacher, TeachingTerms
from logdoctor.learning.diagnoses.writer import OfflineWriter
from logdoctor.llm.exchanges import ExchangeStore
from logdoctor.llm.spending import Guarded, MemoryLedger
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.service.consulting import Climbing
from logdoctor.service.overruling import Overruling
from logdoctor.service.service import Stores
from logdoctor.settings import Settings, cache_folder, prompts_folder
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping.tokens import Tokens
from logdoctor.store.learning.confirmed import AGREEMENT, Confirmation, Confirmed
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls
from logdoctor.taxonomy import REASONS
from logdoctor.wiring.models import Model, guarded, nobody
from logdoctor.wiring.stored import made_folder, records


def climbing(
    settings: Settings, scanner: Scanner, model: Model, stores: Stores, once: Memory | None = None
) -> Climbing:
    """Return the rungs above the rules: past cases, the model if set, and the teacher. With a memory in `once`, the
    model is asked once about equal failures."""
    embedder = SentenceEmbedder(settings.embedding_model)
    library = case_library(settings, stores.confirmed, stores.folder, embedder) if settings.cases == "on" else None
    seam = None
    if settings.agent == "auto" and settings.llm_base_url:
        seam = model(ModelCalls(stores.records.database), stores.exchanges)
    writer = ModelWriter(seam, prompts_folder(settings)) if seam else OfflineWriter()
    terms = TeachingTerms(settings.learn_jobs, settings.confirm_attempts)
    taught = cache_folder(settings) / "taught"
    overruling = Overruling(stores.rules.overrides, stores.records)

    def book_of(job: str) -> RuleBook:
        return overruling.book(scanner.book, job)

    telling = Tokens(stores.records.database).telling
    rules = scanner.book, scanner
    teacher = Teacher(
        stores.rules, stores.confirmed, writer, terms, *rules, cache=taught, book_of=book_of, telling=telling
    )
    similar = partial(_similar, library, telling) if library else None
    agent = failure_agent(settings, seam, similar, embedder) if seam else None
    neighbours = partial(_neighbours, library, telling) if library else None
    conclude: Agent | None = agent.conclude if agent else None
    if conclude and once is not None:
        conclude = Once(conclude, once)
    new = partial(_is_new, stores.confirmed) if settings.agent_new == "on" else None
    terms_of_cases = settings.case_similarity, settings.case_agreement
    ladder = Ladder(neighbours, *terms_of_cases, conclude, settings.agent_below, new, seam.name if seam else "")

    def prompt_for(question: Question) -> str:
        return (agent or failure_agent(settings, nobody(settings), similar, embedder)).prompt_for(question)

    refresh = library.refresh if library else lambda: 0
    return Climbing(ladder, teacher, refresh, partial(warm, embedder), seam, prompt_for)


def rungs(settings: Settings, scanner: Scanner, once: Memory | None = None) -> Climbing:
    """Return the rungs above the rules, for commands that run beside a service. A model is asked once about equal
    failures, including those in a memory."""
    kept = records(settings)
    stored = LearnedRules(kept.database), Confirmed(kept.database), Exchanges(kept.database)
    stores = Stores(kept, *stored, made_folder(settings))
    return climbing(settings, scanner, Model(settings), stores, [] if once is None else once)


def ladder_digest(settings: Settings) -> str:
    """Return 16 hex digits over the settings that answers of the rungs depend on."""
    named = ("llm_base_url", "llm_model", "llm_output", "agent", "cases", "case_")
    used = {name: value for name, value in msgspec.structs.asdict(settings).items() if name.startswith(named)}
    return sha256(msgspec.json.encode(used)).hexdigest()[:16]


def past_cases(settings: Settings) -> CaseLibrary:
    """Return the data folder's past cases, for commands that run beside a service."""
    confirmed = Confirmed(records(settings).database)
    return case_library(settings, confirmed, made_folder(settings), SentenceEmbedder(settings.embedding_model))


def failure_agent(
    settings: Settings,
    model: Guarded,
    similar: Similar | None,
    embedder: Embedder,
) -> FailureAgent:
    """Return the Failure Agent, which asks the model why a job failed."""
    limits = AgentLimits(
        settings.agent_samples, settings.agent_confidence, settings.agent_tool_calls, settings.agent_tokens
    )
    return FailureAgent(model, prompts_folder(settings), similar, embedder, limits)


def agent_to_measure(
    settings: Settings, exchanges: ExchangeStore, clock: Callable[[], float] = time.time
) -> FailureAgent:
    """Return the Failure Agent for measurements: without past cases, with an endless budget.

    Nonsense does not stop it either: its frequency is part of the measurement.
    """
    endless = dict.fromkeys(("llm_calls_per_job", "llm_calls_per_hour", "llm_tokens_per_hour"), 10**12)
    endless |= dict.fromkeys(("llm_tokens_per_job", "llm_tokens_per_day"), 10**12)
    none = {"llm_tokens_in_all": 0, "llm_dollars_per_day": 0.0, "llm_dollars_in_all": 0.0}
    settings = msgspec.structs.replace(settings, **endless, **none)
    embedder = SentenceEmbedder(settings.embedding_model)
    model = guarded(settings, MemoryLedger(), exchanges, bears_nonsense=True, clock=clock)
    return failure_agent(settings, model, None, embedder)


def case_library(settings: Settings, confirmed: Confirmed, folder: Path, embedder: Embedder) -> CaseLibrary:
    """Return the past cases of the confirmations. Their vectors are in the data folder or at the configured URL."""

    def vectors(name: str) -> ChromaVectors:
        place = None if settings.chroma_url else folder / "cases"
        return ChromaVectors(place, settings.chroma_url, name, embedder)

    def cases() -> list[Case]:
        return [_case(one) for one in confirmed.cases()]

    space = _space(settings, folder) if settings.chroma_url else ""
    return CaseLibrary(vectors, embedder.name, cases, confirmed.version, space)


def _space(settings: Settings, folder: Path) -> str:
    """Return the name that separates this service's records from others on the same vector server."""
    url = urlsplit(settings.database_url or f"sqlite:///{folder}")
    return sha256(f"{url.scheme} {url.hostname} {url.port} {url.path}".encode()).hexdigest()[:16]


def _case(one: Confirmation) -> Case:
    """Return the case of a confirmation. One by agreement, without a person, cordons no node."""
    quote = one.evidence[0].quote if one.evidence else ""
    recovery = one.recovery or REASONS[one.reason].recovery
    if recovery == "isolate_and_restart" and one.by == AGREEMENT:
        recovery = "ask_human"
    ruling = (one.reason, one.fault, recovery, one.fix, one.suggestion, one.title)
    return Case(one.id, *ruling, one.digests, one.summary, one.job, one.attempt, one.at, quote)


def _is_new(confirmed: Confirmed, question: Question) -> bool:
    """Return whether no model has read a failure with the same naming line, and nobody confirmed one."""
    cited = [(one.stream, one.line) for one in question.verdict.evidence]
    named = naming(question.episodes, question.records, cited)
    return named is not None and not confirmed.is_known(named.digest)


_NEIGHBOURS = 8


Telling = Callable[[str], Callable[[str], bool]]
"""For a job: the test whether its readers may see what people wrote about another job."""


def _neighbours(library: CaseLibrary, telling: Telling, question: Question) -> Iterator[list[Neighbour]]:
    """Yield similar past cases: first with the same episode, then also near in meaning."""
    lasting = [one for one in question.episodes if not one.survived]
    digests, own = [one.digest for one in lasting], (question.job, question.attempt)
    may_tell = telling(question.job)
    yield _told(library.same(digests, own), may_tell)
    yield _told(library.similar(summary(lasting), digests, _NEIGHBOURS, own), may_tell)


def _similar(
    library: CaseLibrary, telling: Telling, summary: str, digests: Sequence[str], k: int, own: tuple[str, int]
) -> list[Neighbour]:
    """Return similar past cases for a model. Whatever it sees may come back in its answer."""
    may_tell = telling(own[0])
    found = _told(library.similar(summary, digests, k, own), may_tell)
    return [one if may_tell(one.case.job) else one._replace(case=one.case._replace(quote="")) for one in found]


def _told(found: Sequence[Neighbour], may_tell: Callable[[str], bool]) -> list[Neighbour]:
    """Return past cases, without people's texts where this job's readers may not see them."""
    return [
        one if may_tell(one.case.job) else one._replace(case=one.case._replace(fix="", suggestion="")) for one in found
    ]


def diagnosis_guards(scanner: Scanner, records: Records) -> DiagnosisGuards:
    """Return the guards of learned diagnosis rules, which try them on stored attempts."""
    return DiagnosisGuards(scanner.book, scanner, Confirmed(records.database).past)
