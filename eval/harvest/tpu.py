"""Messages of XLA's coordination service, JAX, and the runtime of torch_xla."""

from collections.abc import Iterator
from pathlib import Path

from eval.harvest.c_messages import Call, calls, lines, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.python_messages import messages
from eval.harvest.trees import files, last_with

_LOGGED = r"LOG\((?:ERROR|WARNING|FATAL)\)"
_STATUS = (
    r"(?:absl|errors|tsl::errors)::(?:Internal|Unavailable|InvalidArgument|Aborted|AlreadyExists|NotFound|Cancelled"
    r"|FailedPrecondition|DeadlineExceeded|ResourceExhausted|Unimplemented|Unknown)(?:Error)?"
)
_MOVED = "tsl/distributed_runtime/coordination/coordination_service.cc"
_VALUES = {"(?i)task": "/job:jax_worker/replica:0/task:3"}
_LEVELS = {"ERROR": "E", "WARNING": "W", "FATAL": "F"}


def _printed(said: Call, name: str) -> Iterator[str]:
    """Yield a call's lines: logged ones behind a glog mark, returned ones behind their status."""
    for number, line in enumerate(lines(printed(said, _VALUES))):
        if number:
            yield line
        elif said.name.startswith("LOG"):
            yield f"{_LEVELS[said.name[4:-1]]}0302 11:08:47.123456    4182 {name}:{said.line}] {line}"
        else:
            status = said.name.rsplit("::", 1)[1].removesuffix("Error")
            code = "".join(f"_{letter}" if letter.isupper() else letter for letter in status)[1:].upper()
            yield f"{code}: {line}"


def coordination(tree: Path) -> Iterator[Message]:
    """Yield messages of the coordination service, its agent and channels, from the last revision that has them."""
    for path, text in files(tree, r"distributed_runtime/.*(?<!_test)\.cc$", (last_with(tree, _MOVED),)):
        for said in calls(text, (_LOGGED, _STATUS)):
            for line in _printed(said, path.rsplit("/", 1)[-1]):
                yield Message("XLA coordination", f"{path}:{said.line}", line)


def jax(tree: Path) -> Iterator[Message]:
    """Yield what JAX's set-up of devices and processes logs, and raises as RuntimeError."""
    modules = r"clusters/\w+|distributed|xla_bridge|cloud_tpu_init|hardware_utils|compiler|compilation_cache"
    for path, text in files(tree, rf"^jax/_src/(?:{modules})\.py$"):
        for said in messages(text):
            if said.how in ("WARNING", "UserWarning", "ERROR", "RuntimeError"):
                yield Message("JAX", f"{path}:{said.line}", said.printed("{level}:jax._src:"))


SOURCES: dict[str, Reader] = {"XLA coordination": coordination, "JAX": jax}
