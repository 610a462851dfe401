"""What every place for vectors promises; a test of one gives the fixture `opened`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logdoctor.failure_agent.cases.vectors import ChromaVectors, VectorRow
from tests.failure_agent.cases.chroma import WordEmbedder

ROWS = [
    VectorRow("1", "disk quota exceeded on volume", {"reason": "OS Error"}),
    VectorRow("2", "illegal memory access in kernel", {"reason": "CUDA Error"}),
    VectorRow("3", "disk full on volume", {"reason": "OS Error"}),
]
Opened = Callable[..., ChromaVectors]
"""Opens vectors of a name, which only this test has; any number of times."""


class VectorsContract:
    """Tests for any place for vectors."""

    def test_the_nearest_comes_first_with_its_cosine(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        hits = vectors.search("disk quota exceeded on volume", 2)
        assert [hit.id for hit in hits] == ["1", "3"]
        assert hits[0].score == pytest.approx(1.0, abs=1e-5) and hits[0][2:] == ROWS[0][1:]
        one, other = WordEmbedder().embed([ROWS[0].text, ROWS[2].text])
        assert hits[1].score == pytest.approx(float(one @ other), abs=1e-4)

    def test_facts_select(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add([*ROWS, VectorRow("4", "disk", {"reason": "OS Error", "case": "4"})])
        assert [hit.id for hit in vectors.search("disk", 9, {"reason": "CUDA Error"})] == ["2"]
        assert [hit.id for hit in vectors.search("disk", 9, {"reason": "OS Error", "case": "4"})] == ["4"]

    def test_rows_are_added_once_removed_and_counted(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        vectors.add([VectorRow("1", "other words", {})])
        assert (vectors.ids(), vectors.count()) == ({"1", "2", "3"}, 3)
        assert vectors.search("other words", 1)[0].text != "other words"
        vectors.remove(["1", "unheard of"])
        vectors.remove([])
        assert vectors.ids() == {"2", "3"}

    def test_nothing_is_found_among_nothing(self, opened: Opened) -> None:
        vectors = opened()
        assert (vectors.search("disk", 3), vectors.ids(), vectors.count()) == ([], set(), 0)

    def test_cleared_is_empty_and_usable(self, opened: Opened) -> None:
        vectors, other = opened(), opened()
        vectors.add(ROWS)
        assert other.count() == 3
        vectors.clear()
        assert (vectors.count(), other.count(), other.search("disk", 3)) == (0, 0, [])
        other.add(ROWS[:1])
        assert vectors.ids() == {"1"}

    def test_names_are_apart(self, opened: Opened) -> None:
        opened("one").add(ROWS)
        assert opened("two").count() == 0

    def test_odd_texts(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(
            [
                VectorRow("nul", "a\0b \udc80", {"reason": "\udcff\0"}),
                VectorRow("long", "x y " * 300_000, {}),
                VectorRow("", "", {}),
            ][:2]
        )
        assert {hit.id for hit in vectors.search("\udc80 \0", 5)} == {"nul", "long"}
        assert max(len(hit.text) for hit in vectors.search("x", 5)) < 5000

    def test_more_than_are_there_may_be_asked_for(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        assert len(vectors.search("disk", 10**9)) == 3

    def test_one_sees_what_another_wrote(self, opened: Opened) -> None:
        vectors, other = opened(), opened()
        for number in range(3):
            (vectors if number % 2 else other).add([VectorRow(str(number), f"word{number} here", {})])
            assert {hit.id for hit in vectors.search("here", 9)} == {str(n) for n in range(number + 1)}
            assert {hit.id for hit in other.search("here", 9)} == {str(n) for n in range(number + 1)}
        vectors.remove(["0"])
        assert {hit.id for hit in other.search("here", 9)} == {"1", "2"}

    def test_threads_share_one(self, opened: Opened) -> None:
        vectors = opened()

        def found(number: int) -> list[str]:
            for part in range(4):
                vectors.add([VectorRow(f"{number}-{part}", f"word{number} part{part}", {})])
            return [vectors.search(f"word{number} part{part}", 1)[0].id for part in range(4)]

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(found, range(6))) == [[f"{n}-{part}" for part in range(4)] for n in range(6)]
        assert vectors.count() == 24
