"""A real Chroma server, an embedder that needs no model, and a way to damage files."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(Path(sys.executable).with_name("chroma"))
    command = [program, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with (folder.parent / "chroma.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, cwd=folder.parent)
    try:
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None and time.monotonic() < until, (folder.parent / "chroma.out").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
