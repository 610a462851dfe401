"""The environment of the sender; no other module of it reads the environment."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

DEFAULT_URL = "http://127.0.0.1:8080"
_WITNESS_SECONDS, _MOST_WITNESS_SECONDS = 5.0, 60
_NUMBER = re.compile(r"\d{1,9}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class BatchStep(NamedTuple):
    """A Slurm job as its batch script sees it: its id, and its nodes as Slurm writes them."""

    job: str
    nodelist: str


class Environment(NamedTuple):
    """Values from the environment, with defaults where there are any."""

    url: str
    token: str | None
    job: str | None
    spool_folders: tuple[str, ...]
    """Tried in this order; the last one is a temporary folder."""
    attempt_key: str | None
    stream: str
    metadata: dict[str, str | int]
    slurm_job: str | None
    """The Slurm job that this process may query: only one process per job does, to spare the controller."""
    names_service: bool = False
    """Whether the URL was given, not the default."""
    names_spool: bool = False
    """Whether the first spool folder was given: then spools elsewhere are not sent."""
    state_folder: str | None = None
    """Where supervisors keep the state of jobs; None without a home folder."""
    batch: "BatchStep | None" = None
    """The Slurm job, when this process is in its batch script and not in a task of a step."""
    in_step: bool = False
    """Whether this process is a task of a step, one of many that `srun` starts."""
    master_port: int | None = None
    is_first: bool = True
    """Whether this process has no rank, or the first one; only that one speaks for the job."""
    stacks: str = ""
    """How ranks may be asked where they hang."""
    progress: str = ""
    """The pattern by which the job declares its steps."""
    witness_seconds: float = 0.0
    """How long other sources of a node are asked about a failure; 0 for all processes but the first of a node."""

    def __repr__(self) -> str:
        return f"Environment(url={self.url!r}, job={self.job!r}, stream={self.stream!r})"


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Return the sender's own variables and what schedulers and launchers say about this process."""
    given = os.environ if variables is None else variables
    slurm_job = given.get("SLURM_JOB_ID") or None
    return Environment(
        url=given.get("LOGDOCTOR_URL") or DEFAULT_URL,
        token=given.get("LOGDOCTOR_TOKEN") or None,
        job=given.get("LOGDOCTOR_JOB") or slurm_job,
        spool_folders=_spool_folders(given),
        attempt_key=_attempt_key(given),
        stream=_stream(given),
        metadata=_metadata(given),
        slurm_job=slurm_job if given.get("SLURM_PROCID", "0") == "0" else None,
        names_service=bool(given.get("LOGDOCTOR_URL")),
        names_spool=bool(given.get("LOGDOCTOR_SPOOL_DIR")),
        state_folder=_state_folder(given),
        batch=_batch_step(given),
        in_step="SLURM_STEP_ID" in given,
        master_port=_number(given, "MASTER_PORT"),
        is_first=(_number(given, "RANK") or _number(given, "SLURM_PROCID") or 0) == 0,
        stacks=given.get("LOGDOCTOR_STACKS") or "",
        progress=given.get("LOGDOCTOR_PROGRESS") or "",
        witness_seconds=_witness_seconds(given),
    )


def variable(name: str) -> str:
    """Return the value of a variable; "" when unset."""
    return os.environ.get(name, "")


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables for child processes; empty values unset them."""
    for name, value in variables.items():
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def for_child() -> dict[bytes, bytes]:
    """Return the environment as it was given to us.

    Python itself sets LC_CTYPE in the C locale (PEP 538); the child must not see that.
    """
    variables = dict(os.environb)
    if variables.get(b"LC_CTYPE") == b"C.UTF-8":
        try:
            with open("/proc/self/environ", "rb") as file:
                given = file.read()
        except OSError:
            return variables
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given.split(b"\0")):
            del variables[b"LC_CTYPE"]
    return variables


def _spool_folders(given: Mapping[str, str]) -> tuple[str, ...]:
    cache = given.get("XDG_CACHE_HOME") or os.path.join(given.get("HOME") or "", ".cache")
    folders = [given.get("LOGDOCTOR_SPOOL_DIR") or ""]
    if os.path.isabs(cache) or given.get("HOME"):
        folders.append(os.path.join(cache, "logdoctor", "spool"))
    folders.append(os.path.join(given.get("TMPDIR") or "/tmp", f"logdoctor-spool-{os.getuid()}"))
    return tuple(os.path.expanduser(folder) for folder in folders if folder)


def _witness_seconds(given: Mapping[str, str]) -> float:
    if any(_number(given, name) for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")):
        return 0.0
    seconds = _number(given, "LOGDOCTOR_WITNESS_SECONDS")
    return _WITNESS_SECONDS if seconds is None else float(min(seconds, _MOST_WITNESS_SECONDS))


def _state_folder(given: Mapping[str, str]) -> str | None:
    state = given.get("XDG_STATE_HOME") or os.path.join(given.get("HOME") or "", ".local", "state")
    folder = given.get("LOGDOCTOR_STATE_DIR") or os.path.join(state, "logdoctor", "jobs")
    folder = os.path.expanduser(folder)
    return folder if os.path.isabs(folder) or given.get("LOGDOCTOR_STATE_DIR") else None


def _batch_step(given: Mapping[str, str]) -> BatchStep | None:
    job = given.get("SLURM_JOB_ID", "")
    if "SLURM_STEP_ID" in given or not (job.isascii() and job.isdecimal()):
        return None
    return BatchStep(job, given.get("SLURM_JOB_NODELIST") or given.get("SLURM_NODELIST") or "")


def _attempt_key(given: Mapping[str, str]) -> str | None:
    """Return a key shared by all processes of this attempt and no other; None without a reliable one.

    A supervisor sets it; otherwise it comes from Slurm and torchrun. torchrun's run id counts only if it is a UUID: a
    hand-given `--rdzv-id` is the same for every attempt.
    """
    if told := given.get("LOGDOCTOR_ATTEMPT_KEY"):
        return told
    restarts = _number(given, "TORCHELASTIC_RESTART_COUNT")
    suffix = "" if restarts is None else f".{restarts}"
    if job := given.get("SLURM_JOB_ID"):
        return f"{job}.{_number(given, 'SLURM_RESTART_COUNT') or 0}{suffix}"[:200]
    run = given.get("TORCHELASTIC_RUN_ID", "")
    return f"{run}{suffix}" if _UUID.fullmatch(run) else None


def _stream(given: Mapping[str, str]) -> str:
    host = os.uname().nodename or "host"
    if (rank := _number(given, "RANK")) is not None:
        return f"{host}.rank{rank}"
    if (proc := _number(given, "SLURM_PROCID")) is not None:
        return f"{host}.proc{proc}"
    return host


def _metadata(given: Mapping[str, str]) -> dict[str, str | int]:
    nodes = _number(given, "SLURM_JOB_NUM_NODES") or _number(given, "SLURM_NNODES")
    per_node = _number(given, "SLURM_GPUS_ON_NODE")
    found: dict[str, str | int | None] = {
        "name": given.get("SLURM_JOB_NAME"),
        "user": given.get("SLURM_JOB_USER") or _user(),
        "launcher": "torchrun" if "TORCHELASTIC_RUN_ID" in given else "srun" if "SLURM_STEP_ID" in given else None,
        "nodes": nodes,
        "ranks_per_node": _number(given, "LOCAL_WORLD_SIZE") or _number(given, "SLURM_NTASKS_PER_NODE"),
        "gpus": nodes * per_node if nodes and per_node else _number(given, "WORLD_SIZE"),
        "nodelist": given.get("SLURM_JOB_NODELIST") or given.get("SLURM_NODELIST"),
        "image": given.get("SLURM_CONTAINER_IMAGE") or given.get("SLURM_CONTAINER"),
    }
    return {key: value for key, value in found.items() if value}


def _user() -> str | None:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # containers often run with an unnamed user id
        return None


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name, "")
    return int(value) if _NUMBER.fullmatch(value) else None
