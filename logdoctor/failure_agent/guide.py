"""What tells the reasons apart, a question each, and which recoveries each of them may have."""

from functools import cache
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.failure_agent.forms import NOT_FAILED

NEVER_SURE = "ask_human"
"""The recovery that is right for any reason: a person decides."""


class Guide(NamedTuple):
    """The question that tells a reason from the others, and recoveries that it may have beside its usual one.

    `words` is an expression for the words of lines that name such a failure. It is generous: it only tells when a line
    speaks of something else altogether.
    """

    tells: str
    words: str
    also: tuple[str, ...] = ()


GUIDE: dict[str, Guide] = {
    "NVLink Error": Guide(
        "links or switches between accelerators? NVLink, NVSwitch (Xid 74, 144-150, SXid, fabric manager, NVLS), "
        "AMD xGMI, Ascend HCCS, TPU ICI",
        r"nvlink|nvswitch|sxid|fabric|nvls|\blinks?\b|\blane|xid\b.{0,40}\b(?:74|14[4-9]|150)\b|launch failure"
        r"|system not yet initialized|xgmi",
    ),
    "CUDA Error": Guide(
        "does an accelerator or its driver fail, or refuse a call? NVIDIA (Xid 13/31/43/79/119), AMD, Ascend, Gaudi, "
        "TPU, Neuron, Intel: launch failure, illegal access, lost device; fix_first: device assert, invalid ordinal",
        r"cuda|\bgpus?\b|xid|nvrm|\bcu[a-z]+_?status|cu(?:blas|dnn|solver|sparse)|nvml|nvidia|\bdevice\b"
        r"|driver|\bhip\b|rocm|amdgpu|\bxe\b|habanalabs|\bneuron|\btpus?\b|\bnpu|accel\d",
        ("fix_first", "restart"),
    ),
    "Node Failure": Guide(
        "does a host go away, reboot, break (CPU, memory, PCIe) or lack its accelerators?",
        r"node|\bhost|reboot|panic|\blost\b|unreachable|ordinal|evict|heartbeat|power|gpus?=|expected="
        r"|\bgpus?\b|\bmce\b|machine check|hardware error|lockup|edac|\bpci|page fault|instance|terminat"
        r"|memory failure|unrecoverable",
        ("restart",),
    ),
    "ECC Error": Guide(
        "an accelerator's memory? Xid 48/63/64/94/95, uncorrectable ECC, HBM, RAS, poison",
        r"\becc|uncorrect|uncontained|double.?bit|\bdbe\b|remapp?|memory error|retired? page|page retire"
        r"|xid\b.{0,40}\b(?:48|63|64|94|95)\b|\bras\b|poison|bad page|\buce\b|faulty memory|\bhbm|hardware malfunction",
    ),
    "Network Error": Guide(
        "does a line name the network: fabric, NIC, port, interface, route, DNS, RDMA?",
        r"\bnet|network|\blinks?\b|\bport|\bnics?\b|\bdns\b|interface|infiniband|\bibv?_|mlx\d|roce"
        r"|route|resol|fabric|\bcxi"
        r"|completion|completed with|\blane|\beth\d|socket|bootstrap|gai ?error|getaddrinfo"
        r"|name or service|no such host|\blookup|\befa|unreach"
        r"|carrier|peer|remote|packet",
        ("fix_first", "restart"),
    ),
    "Connection Error": Guide(
        "is one service not reached, not ready or closed: store, tracker, hub, a server of the job? No line names the "
        "network itself",
        r"connect|time[d -]*out|refused|\breset\b|unreachable|https?\b|socket|rendezvous|\bssl|\btls"
        r"|\burl|retr[iy]|resol"
        r"|gateway|service|server|ready|health|proxy|\bhub\b|traffic|offline|request|\b50[0-4]\b",
        ("fix_first",),
    ),
    "S3 Storage Error": Guide(
        "the object store, whatever wraps it? fix_first: keys, bucket",
        r"\bs3|boto|bucket|object|minio|endpoint|storage|blob|\bgcs\b|\boss\b|upload|\b50[0-4]\b|azure"
        r"|petrel|\boss2|quota|request rate|access ?denied",
        ("fix_first",),
    ),
    "NCCL Timeout Error": Guide(
        "did a collective (NCCL, RCCL, HCCL, Gloo, MPI) time out, and nothing deeper says why? fix_first: ranks run "
        "different code, a slow write, a setting",
        r"nccl|collective|watchdog|time[d -]*out|allreduce|all_?gather|all_?to_?all|reduce_?scatter|barrier",
        ("restart", "fix_first"),
    ),
    "NCCL Remote Error": Guide(
        "is a lost peer the deepest that is told? ncclRemoteError, ncclSystemError, ncclInternalError, a closed socket "
        "of any such library; fix_first: a wrong interface, a firewall",
        r"nccl|peer|socket|remote|\brecv|closed|broken pipe|connection|rdma|status=|opcode|\bibv?_"
        r"|\bucx\b|transport|retry|system error|internal error",
        ("restart", "fix_first"),
    ),
    "Dataloader Killed": Guide(
        "did a data-loading worker process die of a signal, by any killer?",
        r"worker|loader|killed|signal|bus error|segm?ent|segfault|\boom\b",
        ("fix_first",),
    ),
    "Attribute Error": Guide("does an object lack an attribute?", r"attribute"),
    "Out of Memory Error": Guide(
        "has the rank itself no memory: accelerator, allocator, cgroup, host; less free than asked for? Also a bare "
        'Killed, SIGKILL or exit code 137 that nobody explains, at most "supported"; restart: a slow leak, a bare kill',
        r"memory|\boom|alloc|kill|cgroup|\bhbm|_eoom|signal 9\b|\b137\b",
        ("restart",),
    ),
    "Runtime Error": Guide(
        "does the program, a library or a compiler (Triton, Inductor, XLA, LLVM) refuse an operation, or crash "
        "(SIGSEGV, SIGABRT, double free), and none of the others fits? restart: a crash after many steps",
        r".",
        ("restart",),
    ),
    "Assertion Error": Guide(
        "does an assertion of the program fail? On a device: CUDA Error", r"assert|expect|check failed", ("restart",)
    ),
    "Value Error": Guide(
        "is a setting or value wrong? Also more accelerators or workers asked for than there are",
        r"value|invalid|config|must|should|expect|support|allowed|correct|unable|range|mismatch|unknown"
        r"|wrong|\bbad\b|setting|gpus?\b|worker|available|resource|more than|less than|exceed",
    ),
    "Zero Division Error": Guide("is something divided by zero?", r"zero|divi|floating point|sigfpe"),
    "Model Loading Error": Guide(
        "can the CONTENT of a model or checkpoint not be loaded: damaged, other shape or world size?",
        r"checkpoint|ckpt|model|weight|state_?dict|load|shard|header|safetensors|pickl|shape|tokenizer|deserial|magic"
        r"|zip|\beof|\blfs\b|corrupt|bytes?\b|vocab|mismatch|input",
    ),
    "Dataset Loading Error": Guide(
        "can the CONTENT of a data set not be loaded: damaged, no schema, missing columns?",
        r"data|parquet|arrow|json|schema|column|shard|record|decod|magic|sample|corrupt|checksum|\btar"
        r"|token|truncat|\bcast\b|mmap"
        r"|buffer|image|bytes",
    ),
    "File Not Found Error": Guide(
        "does a path not exist, even of a checkpoint or data set?",
        r"no ?such|not ?found|not exist|missing|enoent|not a directory"
        r"|can(?:not|'t) (?:be )?(?:find|found|open|load)|not there"
        r"|not a local|does not appear|no file|path|repo",
    ),
    "OS Error": Guide(
        "an errno but ENOENT and EACCES? Disk full, quota, /dev/shm, too many open files, stale handle, address in use",
        r"errno|oserror|ioerror|quota|space|disk|open files|stale|handle|inode|resource|read-only|\bi/o\b|device"
        r"|write|iostream|opened|unexpected pos|enospc|endpoint|ancdata|storage|exceeds|in use|eaddrinuse|rlimit"
        r"|\bpids\b",
        ("restart", "isolate_and_restart"),
    ),
    "Type Error": Guide(
        "is a type wrong, or do arguments not fit a call?", r"type|argument|callable|unexpected|missing|positional"
    ),
    "Name Error": Guide("is a name not defined?", r"name|defined|unbound"),
    "Permission Error": Guide(
        "may a path or repository not be read or written by this user?",
        r"permission|denied|eacces|permitted|forbidden|read-only|privilege|access|gated|\b403\b|authoriz",
    ),
    "Import Error": Guide(
        "can a package, symbol or shared library not be imported?",
        r"import|module|package|symbol|version|requir|install|depend|toggled|\.so\b|librar|operator|binary",
    ),
    "Key Error": Guide("is a key missing in settings or data?", r"key"),
    "Syntax Error": Guide(
        "can the program or a file of settings not be parsed?",
        r"syntax|indent|pars|token|never closed|\beo[fl]\b|scanner|mapping",
    ),
    "Argument Error": Guide(
        "does the argument parser refuse the command line?",
        r"argument|option|usage|flag|unrecogni|parser|--\w|overrid|config|command|mandatory",
    ),
    "Called Process Error": Guide(
        "did a helper command of the job fail (ninja, nvcc, a script), not the launcher that reports a rank?",
        r"process|command|exit|return|status|script|build|compil|ninja",
    ),
    "Index Error": Guide(
        "is an index out of range? On a device: CUDA Error",
        r"index|out of (?:range|bounds)|subscript|_map_base|out_of_range|::at\b",
    ),
    "Hang": Guide(
        "does progress stop without an error? What then ends the job is not the cause",
        r"(?-i:\b(?:hang|hung|HANG)\w*)|stuck|stall|progress|deadlock|not respond|\bidle|time[d -]*out",
        ("isolate_and_restart",),
    ),
    "Loss Spike": Guide(
        "does the loss jump or turn NaN with no other cause? fix_first: from the first step on",
        r"\bnan\b|\binf|loss|spike|diverg|overflow|scale|grad",
        ("fix_first",),
    ),
    "Unknown": Guide("the lines do not show the cause", r"(?!)"),
}


_NO_FAILURE = (
    f"- {NOT_FAILED} [ask_human]: did the job not fail? Only where a line shows that its work went on or was done "
    "after the errors: quote that line"
)


def speaks_of(text: str, reason: str) -> bool:
    """Return whether a line has words of a reason."""
    return _words(reason).search(text) is not None


@cache
def _words(reason: str) -> regex.Pattern[str]:
    return regex.compile(f"(?i){GUIDE[reason].words}")


def allowed(reason: str) -> tuple[str, ...]:
    """Return the recoveries that a reason may have, its usual one first."""
    return (taxonomy.REASONS[reason].recovery, *GUIDE[reason].also)


def reasons(has_failed: bool) -> str:
    """Return all reasons for a prompt, a line each: name, recoveries, what tells it apart; that there is none only for
    a job that nobody reported as failed."""
    lines = [
        f"- {reason} [{' | '.join(allowed(reason))}]: {guide.tells}"
        for reason, guide in GUIDE.items()
        if reason != "Unknown"
    ]
    return "\n".join(lines if has_failed else [*lines, _NO_FAILURE])


def recoveries() -> str:
    """Return the recoveries for a prompt, with what they mean."""
    return "\n".join(f"- {name}: {words}" for name, words in taxonomy.ADVICE.items() if name != "none")


def faults() -> str:
    """Return whose fault it may be, for a prompt."""
    words = taxonomy.FAULT_WORDS.items()
    return "; ".join(
        f'"{name}" ({meaning})' if meaning not in (name, "none") else f'"{name}"' for name, meaning in words
    )
