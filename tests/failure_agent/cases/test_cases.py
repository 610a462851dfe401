"""The library of past cases over real vectors, with an embedder that knows words, and over ones that fail."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import RecallError
from logdoctor.failure_agent.cases.cases import Case, CaseLibrary, collection_name
from logdoctor.failure_agent.cases.vectors import ChromaVectors
from tests.failure_agent.cases.chroma import WordEmbedder


def case(
    number: int, summary: str, digests: tuple[str, ...] = (), reason: str = "OS Error", recovery: str = ""
) -> Case:
    return Case(number, reason, "", recovery, "", "", summary, digests, summary, f"job{number}", 1, float(number), "")


QUOTA = case(1, "disk quota exceeded on volume", ("aa", "bb"))
KERNEL = case(2, "illegal memory access in kernel", ("cc",), "CUDA Error")
FULL = case(3, "disk full on volume", ("dd", "bb"))


class World:
    """A library over a folder, whose cases can be changed."""

    def __init__(self, folder: Path, *cases: Case) -> None:
        self.cases, self.read, self.embedder = list(cases), 0, WordEmbedder()
        self.folder = folder
        self.library = CaseLibrary(self.opened, "words", self.all, self.version)

    def opened(self, name: str) -> ChromaVectors:
        self.vectors = ChromaVectors(self.folder, "", name, self.embedder, seconds=2)
        return self.vectors

    def all(self) -> list[Case]:
        self.read += 1
        return self.cases

    def version(self) -> object:
        return tuple(self.cases)

    def found(self, summary: str, *digests: str, k: int = 3, without: tuple[str, int] | None = None) -> list[int]:
        return [one.case.id for one in self.library.similar(summary, digests, k, without)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "cases", QUOTA, KERNEL, FULL)
    yield world
    world.vectors.close()


def test_cases_are_found_by_likeness(world: World) -> None:
    nearest, other = world.library.similar("disk quota exceeded", [], 2)
    assert (nearest.case, other.case) == (QUOTA, FULL) and not nearest.same
    assert 1 >= nearest.similarity > other.similarity > 0
    assert world.library.trouble is None


def test_cases_with_the_same_digest_come_first_and_do_not_count(world: World) -> None:
    found = world.library.similar("disk quota exceeded", ["cc"], 2)
    assert [(one.case.id, one.same) for one in found] == [(2, True), (1, False), (3, False)]
    (same, *_) = world.library.similar("disk quota exceeded", ["aa"], 2)
    assert same.case == QUOTA and same.same and same.similarity > 0.5


def test_its_own_attempt_is_never_found(world: World) -> None:
    assert world.found("disk quota exceeded", "aa", without=("job1", 1)) == [3, 2]
    assert world.library.same(["aa"], ("job1", 1)) == []
    assert [one.case.id for one in world.library.same(["aa"], ("job1", 2))] == [1]


def test_digests_need_neither_vectors_nor_an_embedder(world: World) -> None:
    assert [one.case.id for one in world.library.same(["bb", "aa"])] == [1, 3]
    assert world.embedder.embedded == [] and not world.folder.exists()


def test_no_claim_hides_another_behind_many_of_its_own() -> None:
    cases = [case(number, "x", ("aa",)) for number in range(2, 300)]
    cases.append(case(1, "x", ("aa",), "CUDA Error"))
    library = CaseLibrary(lambda name: World(Path("unused")).vectors, "words", lambda: cases)
    found = library.same(["aa"])
    assert {one.case.reason for one in found} == {"OS Error", "CUDA Error"} and len(found) < 20
    assert found[0].case.id == 299


def test_what_is_told_in_the_same_words_is_embedded_once(tmp_path: Path) -> None:
    world = World(tmp_path / "cases", *(case(number, "disk full") for number in range(20)), KERNEL)
    assert world.library.refresh() == 2 and world.vectors.count() == 2
    world.cases = world.cases[1:]
    assert world.library.refresh() == 0
    world.vectors.close()


def test_many_of_one_claim_do_not_hide_another_that_is_near(tmp_path: Path) -> None:
    alike = [case(number, f"disk full on volume word{number}") for number in range(2, 22)]
    world = World(tmp_path / "cases", case(1, "disk full on rack", reason="Node Failure"), *alike)
    world.library.refresh()
    found = world.library.similar("disk full on volume", [], 8)
    assert len(found) == 5 and [one.case.id for one in found][-1] == 1
    world.vectors.close()


def test_without_cases_nothing_is_opened_or_embedded(tmp_path: Path) -> None:
    world = World(tmp_path / "cases")
    assert world.found("disk", "aa") == [] and world.library.refresh() == 0
    assert world.embedder.embedded == []


def test_a_failure_without_a_summary_has_no_like(world: World) -> None:
    assert world.found("", "aa") == [1] and world.found(" \n") == []


def test_a_case_without_a_summary_is_found_by_digest_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "cases", case(1, "", ("aa",)), FULL)
    assert (world.found("disk full"), world.found("disk full", "aa"), world.library.refresh()) == ([3], [1, 3], 0)


def test_what_is_new_is_taken_up_and_what_is_withdrawn_is_forgotten(world: World) -> None:
    assert world.library.refresh() == 3
    world.cases = [QUOTA, FULL, case(4, "kernel panic on node", ("ee",))]
    assert world.library.refresh() == 2
    assert world.found("illegal memory access in kernel", "ee", "cc")[0] == 4
    assert world.vectors.count() == 3
    assert world.found("kernel panic", k=9) == [4, 1, 3] or world.found("kernel panic", k=9) == [4, 3, 1]


def test_a_search_sees_what_is_new(world: World) -> None:
    world.library.refresh()
    world.cases = [*world.cases, case(4, "kernel panic on node")]
    assert world.found("kernel panic on node", k=1) == [4]


def test_a_case_told_in_other_words_is_embedded_again(world: World) -> None:
    world.library.refresh()
    world.cases = [QUOTA._replace(summary="cable pulled from switch"), KERNEL, FULL]
    assert world.library.refresh() == 2
    assert world.found("cable pulled", k=1) == [1] and world.vectors.count() == 3


def test_nothing_is_read_or_embedded_again_when_nothing_changed(world: World) -> None:
    assert (world.library.refresh(), world.library.refresh()) == (3, 0)
    world.found("disk")
    read, embedded = world.read, len(world.embedder.embedded)
    assert world.library.refresh() == 0 and world.found("", "aa") == [1]
    assert (world.read, len(world.embedder.embedded)) == (read, embedded)


def test_a_search_takes_up_few_of_many_the_newest(tmp_path: Path) -> None:
    world = World(tmp_path / "cases", *(case(number, f"word{number}") for number in range(200)))
    assert world.found("word199", k=1) == [199] and world.vectors.count() < 50
    assert world.library.refresh() == 200 - 16 and world.vectors.count() == 200
    world.vectors.close()


def test_a_new_process_embeds_nothing_again(world: World, tmp_path: Path) -> None:
    world.library.refresh()
    later = World(tmp_path / "cases", *world.cases)
    assert later.library.refresh() == 0 and later.embedder.embedded == []
    assert later.found("disk quota", k=1) == [1]
    later.vectors.close()


def test_reindex_makes_all_again_and_others_see_it(world: World, tmp_path: Path) -> None:
    world.library.refresh()
    other = World(tmp_path / "cases", *world.cases)
    assert other.library.reindex() == 3 and len(other.embedder.embedded) == 3
    assert world.found("disk quota", k=1) == [1]
    other.vectors.clear()
    world.found("disk quota")  # notices that they are gone
    assert world.found("disk quota", k=1) == [1]
    other.vectors.close()


def test_each_model_and_space_has_vectors_of_its_own() -> None:
    names = {collection_name(*given) for given in (("a", ""), ("b", ""), ("a", "s"), ("a\ns", ""), ("\udc80", ""))}
    assert len(names) == 5 and all(len(name) < 60 and name.replace("-", "").isalnum() for name in names)


def test_damaged_vectors_are_made_again_by_a_search(world: World, tmp_path: Path) -> None:
    world.library.refresh()
    world.vectors.close()
    (world.folder / "chroma.sqlite3").write_bytes(b"damaged" * 3000)
    later = World(tmp_path / "cases", *world.cases)
    assert later.found("disk quota exceeded", k=1) == [1] and later.library.trouble is None
    later.vectors.close()


def test_damaged_vectors_are_made_again_by_a_refresh(world: World, tmp_path: Path) -> None:
    world.library.refresh()
    world.vectors.close()
    (world.folder / "chroma.sqlite3").write_bytes(b"damaged" * 3000)
    later = World(tmp_path / "cases", *world.cases)
    assert later.library.refresh() == 3 and later.vectors.count() == 3
    later.vectors.close()


def test_vectors_that_cannot_be_used_leave_what_has_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    world = World(tmp_path / "file" / "cases", QUOTA, KERNEL, FULL)
    assert world.found("disk quota exceeded", "cc") == [2]
    assert "cannot be used" in str(world.library.trouble)
    for ask in (world.library.refresh, world.library.reindex):
        with pytest.raises(RecallError, match="cannot be used"):
            ask()


def test_an_embedder_that_cannot_be_loaded_leaves_what_has_the_same_digest(world: World) -> None:
    class Broken(WordEmbedder):
        def embed(self, texts: object) -> None:  # type: ignore[override]
            raise RecallError("embedding model x", "it cannot be loaded", "Set another.")

    library = CaseLibrary(lambda name: ChromaVectors(world.folder, "", name, Broken()), "words", lambda: world.cases)
    assert [one.case.id for one in library.similar("disk quota", ["cc"], 3)] == [2]
    assert "cannot be loaded" in str(library.trouble)


def test_many_threads_may_ask_while_cases_change(tmp_path: Path) -> None:
    world = World(tmp_path / "cases", *(case(number, f"word{number}", (f"d{number}",)) for number in range(20)))
    wrong: list[object] = []

    def ask(first: int) -> None:
        for number in range(first, 20, 4):
            if world.found(f"word{number}", f"d{number}", k=1)[:1] != [number]:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for number in range(20, 30):
        world.cases = [*world.cases, case(number, f"word{number}", (f"d{number}",))]
        world.library.refresh()
    for thread in threads:
        thread.join()
    assert not wrong and world.library.trouble is None and world.vectors.count() == 30
    world.vectors.close()
