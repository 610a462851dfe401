"""A real Chroma server, an embedder that needs no model, and a way to damage files."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests import waiting


class WordEmbedder:
    """Texts are near when they share words; the same in every process."""

    name = "words"

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.embedded += texts
        vectors = np.full((len(texts), 512), 1e-3, np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, int(hashlib.sha256(word.encode("utf-8", "replace")).hexdigest()[:8], 16) % 512] += 1
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


@contextmanager
def chroma_server(folder: Path) -> Iterator[str]:
    """The URL of `chroma run` over a folder; it is stopped in the end."""
    process, port = _serving(folder)
    while process.poll() is not None:  # somebody else has taken the port meanwhile
        process, port = _serving(folder)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _serving(folder: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """A server that listens, or has ended because its port is in use."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program, said = Path(sys.executable).with_name("chroma"), folder.parent / "chroma.out"
    command = [str(program), "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with said.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, cwd=folder.parent)
    waiting.until(lambda: process.poll() is not None or not socket.socket().connect_ex(("127.0.0.1", port)))
    assert process.poll() is None or "in use" in said.read_text(), said.read_text()
    return process, port
