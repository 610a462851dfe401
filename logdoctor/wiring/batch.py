"""Build the diagnosis of an archive: a shard's judge, and the engines to run it."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import IO

from logdoctor import wiring
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import StoreDamaged
from logdoctor.pipeline import cores
from logdoctor.pipeline.batch.judging import Judge, Learned
from logdoctor.pipeline.batch.processes import apart, worked
from logdoctor.pipeline.batch.run import Engine, Made
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.pipeline.batch.sources import Fetch, bucket_and_key
from logdoctor.pipeline.batch.told import Table, Told
from logdoctor.settings import Settings, cache_folder
from logdoctor.store.log.bucket import Bucket
from logdoctor.store.log.objects import ObjectFacts

_bucket = lru_cache(8)(Bucket)  # each has its connections

NOTHING = Learned()
"""For a judge that knows only the shipped rules."""

_PIECE = 8 << 20  # bytes of an object read at a time


class ListingApart:
    """The objects of a bucket, listed in a process of its own. The threads of its library do not survive the forks of
    this one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def walk(self, prefix: str) -> Iterator[ObjectFacts]:
        """Yield the objects below a prefix that ends with `/`, or all, sorted by name."""
        return apart(lambda: Bucket(self._url).walk(prefix))

    def facts(self, name: str) -> ObjectFacts | None:
        """Return the facts about an object; None if it does not exist."""
        (facts,) = apart(lambda: [Bucket(self._url).facts(name)])
        return facts


def fetch(url: str, file: IO[bytes]) -> None:
    """Write the object behind a URL to a file. `StoreError` when it cannot be read, `StoreDamaged` when it is gone."""
    place, name = bucket_and_key(url)
    bucket = _bucket(place)
    size = bucket.size(name)
    if size is None:
        raise StoreDamaged(url, "is missing", "It was there when the logs were listed; give the same command again.")
    for begin in range(0, size, _PIECE):
        file.write(bucket.get(name, begin, min(begin + _PIECE, size)))
    file.flush()


def fetch_apart(url: str, file: IO[bytes]) -> None:
    """Do the same as `fetch`, in a process of its own."""

    def fetched() -> list[None]:
        fetch(url, file)
        return []

    list(apart(fetched))


def judge(settings: Settings, learned: Learned = NOTHING, fetch: Fetch = fetch) -> Judge:
    """Return the judge of a shard, by the rules of the settings and learned ones."""
    scanner = wiring.scanner(settings)
    cache = cache_folder(settings) / "taught"
    scanners = {kind: scanner.learning(kind, rules) for kind, rules in learned.filters.items()}
    taught = Taught(learned.causes, cache)
    return Judge(scanner, wiring.limits(settings), fetch, scanners, taught, overrides=learned.overrides)


def for_judging(settings: Settings) -> Settings:
    """Return settings that make the same judge on another machine. They lack secrets such as keys and the database's
    address."""
    return Settings(
        rules=settings.rules,
        more_rules=settings.more_rules,
        cache_dir=settings.cache_dir,
        block_bytes=settings.block_bytes,
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_expansion=settings.max_expansion,
    )


def learned(settings: Settings) -> Learned:
    """Return the learned rules and overrides in use in the data folder."""
    from logdoctor.learning.filters.book import Books
    from logdoctor.learning.form import as_diagnosis, as_override
    from logdoctor.store.learning.rule_rows import DIAGNOSIS
    from logdoctor.wiring import stored

    rules = stored.learned_rules(settings)
    books = Books(wiring.scanner(settings), rules)
    books.refresh()
    causes = (rule for rule in rules.list(DIAGNOSIS, "active") if rule.claim is not None)
    filters = {kind: books.scanner(kind).book.learned for kind in books.kinds}
    overrides = tuple(map(as_override, reversed(rules.overrides.list())))
    return Learned(filters, tuple(map(as_diagnosis, causes)), overrides)


def told(table: Table | None, settings: Settings | None) -> Callable[[str], Told | None]:
    """Return a function that maps the name of a log to facts about its job. They come from a table, and from the data
    folder of the settings, which knows the kinds of jobs."""
    if table is None:
        return lambda name: None
    if settings is None:
        return table.of
    from logdoctor.learning.filters.kind import kind_of
    from logdoctor.store.jobs.records import JobFacts
    from logdoctor.wiring import stored

    records = stored.records(settings)

    def known(name: str) -> Told | None:
        told = table.of(name)
        if told is None:
            return None
        job = records.job(told.job) if told.job else None
        facts = job.facts if job else JobFacts(framework=told.framework, user=told.user)
        return told._replace(kind=kind_of(told.job or "", facts))

    return known


def processes(judge: Judge, workers: int) -> Engine:
    """Return the engine of this machine with `workers` processes; 0 means one per core."""
    return partial(_on_processes, judge, workers or cores())


def _on_processes(judge: Judge, workers: int, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Made]]:
    return worked(judge, shards, workers)
