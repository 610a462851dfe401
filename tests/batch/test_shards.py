"""How an archive is cut into shards, and by what a shard is known."""

from logdoctor.errors import InputError
from logdoctor.pipeline.batch.shards import Shard, ShardSize, cut, size_for
from logdoctor.pipeline.batch.sources import Source, SourceFile
from logdoctor.pipeline.batch.told import Told


def source(name: str = "a.log", size: int = 10, **changes: object) -> Source:
    return Source(name, (SourceFile("main", name, size, "1"),))._replace(**changes)  # type: ignore[arg-type]


def test_shards_are_neither_too_large_nor_too_small() -> None:
    assert size_for(ShardSize(1 << 40, 1_000_000)) == (64 << 20, 256)
    assert size_for(ShardSize(2 << 30, 10_000)) == (8 << 20, 39)
    assert size_for(ShardSize(5000, 3)) == (1 << 20, 16)


def test_every_source_is_in_one_shard_in_order() -> None:
    sources = [source(f"{number}", number % 7) for number in range(100)]
    shards = list(cut(((one, 2) for one in sources), ShardSize(20, 8)))
    assert [one for shard in shards for one in shard.sources] == sources
    assert sum(shard.weight for shard in shards) == 200
    assert all(len(shard.sources) <= 8 for shard in shards)
    assert all(sum(one.size for one in shard.sources[:-1]) < 20 for shard in shards)
    assert list(cut([], ShardSize(20, 8))) == []


def test_a_shard_is_known_by_all_that_its_rows_depend_on() -> None:
    shard = Shard((source(),), 1)
    same = shard._replace(weight=9).digest("rules 1")
    assert same == shard.digest("rules 1") == Shard((source(),), 1).digest("rules 1")
    others = [
        shard.digest("rules 2"),
        *(
            Shard((other,), 1).digest("rules 1")
            for other in (
                source("b.log"),
                source(size=11),
                source(files=(SourceFile("main", "a.log", 10, "2"),)),
                source(files=(SourceFile("rank0", "a.log", 10, "1"),)),
                source(told=Told(exit_code=1)),
                source(attempt="attempt_1"),
                source(error=InputError("a.log", "is bad", "Look.")),
                source("\udcff.log"),
            )
        ),
    ]
    assert len({same, *others}) == 1 + len(others)
