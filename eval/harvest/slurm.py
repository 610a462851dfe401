"""What Slurm can write into a job's log: its commands (srun, sbatch, salloc), slurmstepd, and its tables of words.

Left out: what slurmctld, slurmd and slurmdbd write only into their own logs, and debug and verbose levels.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, literals, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files
from eval.harvest.values import filled

_COMMANDS = ("src/srun", "src/salloc", "src/sbatch", "src/sbcast", "src/plugins/launch/slurm", "src/plugins/cli_filter")
_LIBRARY = (
    *(
        f"src/api/{name}.c"
        for name in ("allocate", "allocate_msg", "pmi_server", "slurm_pmi", "step_io", "step_launch")
    ),
    *(f"src/api/{name}.c" for name in ("submit", "complete", "signal", "cancel", "init", "step_ctx")),
    *(f"src/common/{name}.c" for name in ("slurm_opt", "proc_args", "cpu_frequency", "tres_bind", "tres_frequency")),
    *(f"src/common/{name}.c" for name in ("tres_freq", "slurm_mpi", "slurm_auth")),
    *(
        f"src/common/{name}.c"
        for name in ("env", "parse_time", "slurm_resource_info", "slurm_resolv", "net", "util-net")
    ),
    *(
        f"src/common/{name}.c"
        for name in ("slurm_protocol_api", "slurm_protocol_util", "slurm_protocol_socket", "spank")
    ),
    *(f"src/common/{name}.c" for name in ("plugin", "plugrack", "fetch_config", "x11_util", "step_ctx", "stepd_api")),
    *(f"src/common/{name}.c" for name in ("uid", "slurm_rlimits_info", "slurm_step_layout", "eio", "io_hdr", "fd")),
    *(f"src/common/{name}.c" for name in ("file_bcast", "run_command", "sack_api", "forward", "log")),
    *(f"src/interfaces/{name}.c" for name in ("mpi", "cli_filter", "switch", "auth", "cred", "conn", "tls", "hash")),
)
_STEPD = (
    "src/slurmd/slurmstepd",
    "src/slurmd/common",
    *(f"src/plugins/{name}" for name in ("mpi", "task", "proctrack", "cgroup", "namespace", "job_container")),
    *(f"src/plugins/{name}" for name in ("gres/common", "gres/gpu", "switch/nvidia_imex", "switch/hpe_slingshot")),
    *(f"src/plugins/{name}" for name in ("switch/common", "jobacct_gather", "acct_gather_profile")),
    *(f"src/plugins/{name}" for name in ("acct_gather_energy", "acct_gather_interconnect", "acct_gather_filesystem")),
    *(
        f"src/interfaces/{name}.c"
        for name in ("task", "cgroup", "proctrack", "jobacct_gather", "namespace", "gpu", "prep")
    ),
    *(f"src/interfaces/acct_gather{name}.c" for name in ("", "_profile", "_energy", "_interconnect", "_filesystem")),
)
_ELSEWHERE = regex.compile(
    r"/sh5util/|hpe_slingshot/(?:config|rest|collectives|instant_on|state)|gres/common/gres_c_s|port_mgr|slurm_protocol_pack|"
    r"read_(?:js|ns)conf|/mpi/pmi2/kvs|libsh5util"
)
"""Parts of those folders that only daemons or administrators' tools run."""
_CONTROLLER = ("src/slurmctld", "src/slurmd/slurmd", "src/interfaces/gres.c")
_LEVELS = {"error": "error: ", "fatal": "fatal: ", "fatal_abort": "fatal: ", "warning": "warning: ", "info": ""}
_PMIX = {"PMIXP_ERROR": "", "PMIXP_ABORT": "", "PMIXP_ERROR_STD": ": Connection refused (111)"}
_PMIX["PMIXP_ERROR_NO"] = _PMIX["PMIXP_ERROR_STD"]
_ERRNO = regex.compile(r"ERRTAB_ENTRY\((?P<name>\w+)\),?\s*(?P<text>(?:\"(?:\\.|[^\"])*\"\s*)+)")
_REASON = regex.compile(r"\[(?P<name>WAIT_\w+|FAIL_\w+)\] = \{[^}]*?\.str = \"(?P<text>\w+)\"")
_NODE_DOWN = regex.compile(
    r"(?:xstr(?:fmt)?cat\(\*?reason_down,|drain_nodes\([^;]*?|set_node_reason\([^;]*?)(?P<text>\"[^;]*?)[,)]"
)


def log_lines(root: Path, revision: str, source: str) -> Iterator[Message]:
    """Yield lines of the commands and slurmstepd at the levels that a job's log shows."""
    for under, program, levels in (
        ((*_COMMANDS, *_LIBRARY), "srun", ("error", "fatal", "fatal_abort", "warning", "info")),
        (_STEPD, "slurmstepd", ("error", "fatal", "fatal_abort")),
    ):
        for path, text in files(root, below(under, "c"), (revision,)):
            if _ELSEWHERE.search(path):
                continue
            who = next((name for name in ("sbatch", "salloc", "sbcast") if path.startswith(f"src/{name}/")), program)
            plugin = "mpi/pmix_v4" if "pmix" in path else path.removeprefix("src/plugins/").rsplit("/", 1)[0]
            for call in calls(text, (*levels, *_PMIX)):
                said = printed(call, {"^plugin_type$": plugin})
                if call.name in _PMIX:
                    where = f" mpi/pmix_v4: {call.function}: gpu-12 [0]: {Path(path).name}:{call.line}: "
                    said = where + said + _PMIX[call.name]
                for part in said.split("\n"):
                    if part.strip():
                        yield Message(
                            source, f"{path}:{call.line}", f"{who}: {_LEVELS.get(call.name, 'error: ')}{part}"
                        )


def error_texts(root: Path, revision: str, source: str) -> Iterator[Message]:
    """Yield the texts of Slurm's own errno values, as the commands print them for refusals."""
    for path, text in files(root, r"^src/common/slurm_errno\.[ch]$", (revision,)):
        for match in _ERRNO.finditer(text):
            said = literals(match["text"])
            yield Message(
                source, f"{path} {match['name']}", f"srun: error: Unable to create step for job 88012: {said}"
            )
            yield Message(source, f"{path} {match['name']}", f"sbatch: error: Batch job submission failed: {said}")


def reasons(root: Path, revision: str, source: str) -> Iterator[Message]:
    """Yield why a job waits or ended, as squeue and scontrol print it."""
    for path, text in files(root, r"^src/common/job_state_reason\.[ch]$", (revision,)):
        for match in _REASON.finditer(text):
            said = f"   JobState=PENDING Reason={match['text']} Dependency=(null)"
            if match["name"].startswith("FAIL_"):
                said = f"   JobState=FAILED Reason={match['text']} Dependency=(null)"
            yield Message(source, f"{path} {match['name']}", said)


def node_reasons(root: Path, revision: str, source: str) -> Iterator[Message]:
    """Yield why the controller drained a node, as sinfo and scontrol print it."""
    for path, text in files(root, below(_CONTROLLER, "c"), (revision,)):
        for match in _NODE_DOWN.finditer(text):
            said = filled(literals(match["text"])).removeprefix("word-7").strip()
            if len(said) > 3:
                yield Message(
                    source, path, f"NodeName=gpu-12 State=DOWN+DRAIN Reason={said} [slurm@2025-01-22T01:43:56]"
                )


def _everything(revision: str, source: str, root: Path) -> Iterator[Message]:
    for part in (log_lines, error_texts, reasons, node_reasons):
        yield from part(root, revision, f"{source}: {part.__name__.replace('_', ' ')}")


SOURCES: dict[str, Reader] = {
    "slurm": partial(_everything, "HEAD", "slurm"),
    "slurm 23.02": partial(_everything, "slurm-23-02-1-1", "slurm 23.02"),
    "slurm 20.11": partial(_everything, "slurm-20-11-1-1", "slurm 20.11"),
}
