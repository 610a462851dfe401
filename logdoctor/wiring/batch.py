"""Build what diagnoses an archive: the judge of a shard, and the engines that run it."""

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
"""For a judge that knows the shipped rules alone."""

_PIECE = 8 << 20  # bytes of an object that are read at a time


class ListingApart:
    """The objects of a bucket, listed in a process of its own: the threads of its library do not live through the forks
    of this one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def walk(self, prefix: str) -> Iterator[ObjectFacts]:
        """Yield those below a prefix that ends with `/`, or all, in the order of their names."""
        return apart(lambda: Bucket(self._url).walk(prefix))

    def facts(self, name: str) -> ObjectFacts | None:
        """Return what is known of one; None when there is none."""
        (facts,) = apart(lambda: [Bucket(self._url).facts(name)])
        return facts


def fetch(url: str, file: IO[bytes]) -> None:
    """Write the object behind a URL to a file; `StoreError` when it cannot be read, `StoreDamaged` when it is gone."""
    place, name = bucket_and_key(url)
    bucket = _bucket(place)
    size = bucket.size(name)
    if size is None:
        raise StoreDamaged(url, "is missing", "It was there when the logs were listed; give the same command again.")
    for begin in range(0, size, _PIECE):
        file.write(bucket.get(name, begin, min(begin + _PIECE, size)))
    file.flush()


def fetch_apart(url: str, file: IO[bytes]) -> None:
    """Do so in a process of its own."""

    def fetched() -> list[None]:
        fetch(url, file)
        return []

    list(apart(fetched))


def judge(settings: Settings, learned: Learned = NOTHING, fetch: Fetch = fetch) -> Judge:
    """Return what diagnoses a shard by the rules of the settings, and by those that were learned."""
    scanner = wiring.scanner(settings)
    cache = cache_folder(settings) / "taught"
    scanners = {kind: scanner.learning(kind, rules) for kind, rules in learned.filters.items()}
    taught = Taught(learned.causes, cache)
    return Judge(scanner, wiring.limits(settings), fetch, scanners, taught, overrides=learned.overrides)


def for_judging(settings: Settings) -> Settings:
    """Return settings with which another machine makes the same judge, without what it need not know, such as keys and
    the address of a database."""
    return Settings(
        rules=settings.rules,
        cache_dir=settings.cache_dir,
        block_bytes=settings.block_bytes,
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_expansion=settings.max_expansion,
    )


def learned(settings: Settings) -> Learned:
    """Return what was learned in the data folder and is in use."""
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
    """Return what tells of a job by the name of its log: a table, and the data folder of the settings, which knows of
    what kind a job is."""
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
    """Return the engine of this machine: so many processes, 0 for one on each core."""
    return partial(_on_processes, judge, workers or cores())


def _on_processes(judge: Judge, workers: int, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Made]]:
    return worked(judge, shards, workers)
