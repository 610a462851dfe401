"""Texts found by likeness: past cases in Chroma, the parts of one log in memory; the only module that asks LlamaIndex.

LlamaIndex is imported at the first use: that takes seconds. It is handed finished vectors and no language model, so it
neither loads nor calls any of its own.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from logdoctor.failure_agent.cases.chroma import Folder, Server, load
from logdoctor.failure_agent.cases.embedding import Embedder

_AT_ONCE = 256  # rows that are embedded and written under one lock
_MOST_FOUND = 1000
_BEGINNING = 160  # characters of a chunk that are embedded
_KEPT = 4000  # characters of a text, or of a fact, that stand beside its vector


class VectorRow(NamedTuple):
    """A text to be found, under a name of its own, with what is to be known of it.

    The store keeps the beginning of the text and of each fact, in valid Unicode.
    """

    id: str
    text: str
    facts: dict[str, str]


class VectorHit(NamedTuple):
    """A row that was found. `score` is the cosine of the angle between the texts, 0 to 1."""

    id: str
    score: float
    text: str
    facts: dict[str, str]


class Vectors(Protocol):
    """Rows that are found by likeness; any thread may ask. `RecallError` when they cannot be used now."""

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Take up rows; one whose id is there already is left as it is."""
        ...

    def remove(self, ids: Sequence[str]) -> None:
        """Forget rows; ids that are not there are no error."""
        ...

    def search(self, text: str, most: int, where: Mapping[str, str] | None = None) -> list[VectorHit]:
        """Return the rows that are most like a text, the nearest first; only those with these facts when some are
        given."""
        ...

    def ids(self) -> set[str]:
        """Return the ids of all rows."""
        ...

    def count(self) -> int:
        """Return how many rows there are."""
        ...

    def clear(self) -> None:
        """Forget all rows, also of a folder that is damaged."""
        ...


class ChromaVectors:
    """Rows in one collection of Chroma: in a folder of its own, or of the server at `url`.

    `url` may name a user and a password. A call waits at most `seconds` for the server, or for another process that
    uses the folder.
    """

    def __init__(self, folder: Path | None, url: str, name: str, embedder: Embedder, seconds: float = 10.0) -> None:
        if bool(url) == (folder is not None):
            raise ValueError("vectors are in a folder or behind a URL")
        self._name, self._embedder = name, embedder
        self._place = Server(url, seconds) if folder is None else Folder(folder, seconds)

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Take up rows; one whose id is there already is left as it is."""
        for begin in range(0, len(rows), _AT_ONCE):
            load()
            some = rows[begin : begin + _AT_ONCE]
            nodes = _nodes(some, self._embedder.embed([row.text for row in some]))
            with self._place.collection(self._name) as collection:
                _store(collection).add(nodes)

    def remove(self, ids: Sequence[str]) -> None:
        """Forget rows; ids that are not there are no error."""
        for begin in range(0, len(ids), _AT_ONCE):
            with self._place.collection(self._name) as collection:
                _store(collection).delete_nodes(list(ids[begin : begin + _AT_ONCE]))

    def search(self, text: str, most: int, where: Mapping[str, str] | None = None) -> list[VectorHit]:
        """Return the rows that are most like a text, the nearest first; only those with these facts when some are
        given."""
        load()
        query = _query(self._embedder.embed([text])[0].tolist(), min(most, _MOST_FOUND), where)
        with self._place.collection(self._name) as collection:
            found = _store(collection).query(query)
        pairs = zip(found.nodes, found.similarities, strict=True)
        hits = [
            VectorHit(node.node_id, _cosine(score), node.get_content(), dict(node.metadata)) for node, score in pairs
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))

    def ids(self) -> set[str]:
        """Return the ids of all rows."""
        with self._place.collection(self._name) as collection:
            return set(collection.get(include=[])["ids"])

    def count(self) -> int:
        """Return how many rows there are."""
        with self._place.collection(self._name) as collection:
            return int(collection.count())

    def clear(self) -> None:
        """Forget all rows, also of a folder that is damaged."""
        self._place.clear(self._name)

    def close(self) -> None:
        """Give the files or connections back; the next use opens them again."""
        self._place.close()


class Chunk(NamedTuple):
    """A part of a log that is found as one: an episode, or lines that stand together."""

    id: str
    text: str


class LogQuery:
    """Finds the parts of one log that answer a question, in memory and without a language model.

    At most `most` chunks are embedded for a question, by their beginnings: those that share the most and the rarest
    words with it, of equal ones the first. A chunk that is new to the embedder takes some 20 milliseconds of one core.
    """

    def __init__(self, chunks: Sequence[Chunk], embedder: Embedder, most: int = 8) -> None:
        self._chunks, self._embedder, self._most = chunks, embedder, most
        self._words: list[frozenset[str]] | None = None

    def search(self, question: str, most: int) -> list[VectorHit]:
        """Return the chunks that are most like a question, the nearest first; `facts` are empty. `RecallError` as of
        the embedder."""
        load()
        places = self._likely(question)
        if not places or most < 1:
            return []
        beginnings = [self._chunks[place].text[:_BEGINNING] for place in places]
        vectors = self._embedder.embed([question, *beginnings]).tolist()
        found = _nearest(vectors[0], vectors[1:], most)
        hits = [VectorHit(self._chunks[places[at]].id, score, self._chunks[places[at]].text, {}) for at, score in found]
        return sorted(hits, key=lambda hit: -hit.score)

    def _likely(self, question: str) -> list[int]:
        """Return the places of the chunks to embed, in order."""
        if len(self._chunks) <= self._most:
            return list(range(len(self._chunks)))
        if self._words is None:
            self._words = [_words(chunk.text) for chunk in self._chunks]
        asked = _words(question)
        counted = {word: sum(word in words for words in self._words) for word in asked}
        worth = [sum(1 / counted[word] for word in asked & words) for words in self._words]
        best = sorted(range(len(worth)), key=lambda place: (-worth[place], place))[: self._most]
        return sorted(best)


def warm(embedder: Embedder) -> None:
    """Load what the first search would wait seconds for: the libraries and the model. `RecallError` when one is bad."""
    embedder.embed([""])
    load()
    _nearest([1.0, 0.0], [[1.0, 0.0]], 1)


def _words(text: str) -> frozenset[str]:
    """Return the words of a text, in small letters, bounded."""
    cleaned = "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text[:4000].lower())
    return frozenset(word for word in cleaned.split() if len(word) > 2)


def _cosine(score: float) -> float:
    """Return the cosine that LlamaIndex tells as exp(cosine - 1)."""
    return min(1.0, max(0.0, 1.0 + math.log(score))) if score > 0 else 0.0


def _store(collection: Any) -> Any:
    """Return LlamaIndex's view of a collection."""
    from llama_index.vector_stores.chroma import ChromaVectorStore

    return ChromaVectorStore(chroma_collection=collection)


def _nodes(rows: Sequence[VectorRow], vectors: NDArray[np.float32]) -> list[Any]:
    """Return rows with their vectors, as LlamaIndex wants them."""
    from llama_index.core.schema import TextNode

    return [
        TextNode(
            id_=row.id,
            text=_storable(row.text),
            metadata={key: _storable(fact) for key, fact in row.facts.items()},
            embedding=vector.tolist(),
        )
        for row, vector in zip(rows, vectors, strict=True)
    ]


def _storable(text: str) -> str:
    """Return the beginning of a text, without what UTF-8 or a database refuses."""
    return text[:_KEPT].encode("utf-8", "replace").decode("utf-8").replace("\0", " ")


def _query(vector: list[float], most: int, where: Mapping[str, str] | None) -> Any:
    """Return a search for the nearest, among those with these facts."""
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters, VectorStoreQuery

    filters = (
        MetadataFilters(filters=[MetadataFilter(key=key, value=fact) for key, fact in where.items()]) if where else None
    )
    return VectorStoreQuery(query_embedding=vector, similarity_top_k=most, filters=filters)


def _nearest(asked: list[float], vectors: list[list[float]], most: int) -> list[tuple[int, float]]:
    """Return places of the vectors nearest to one, with their cosine, by LlamaIndex's query engine without a model."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers.no_text import NoText
    from llama_index.core.schema import QueryBundle, TextNode

    unused = MockEmbedding(embed_dim=len(asked))  # given, so that none is looked for
    nodes = [TextNode(id_=str(place), text="-", embedding=vector) for place, vector in enumerate(vectors)]
    index = VectorStoreIndex(nodes, embed_model=unused, transformations=[unused])
    engine = RetrieverQueryEngine(
        index.as_retriever(similarity_top_k=most),
        NoText(llm=MockLLM()),
    )
    found = engine.retrieve(QueryBundle("", embedding=asked))
    return [(int(node.node_id), min(1.0, max(0.0, node.score))) for node in found]
