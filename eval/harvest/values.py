"""Plausible values in the places of format strings, so that a message reads as a program prints it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import regex

NONE: Mapping[str, str] = MappingProxyType({})
GAP = regex.compile(r"⟦(?P<gap>[^⟦⟧]{0,400})⟧")
"""Marks what a program puts between two literals: `⟦expression⟧`."""

_PLACE = regex.compile(
    r"%(?P<width>[-+#0']*(?:\d+|\*)?(?:\.(?:\d+|\*))?)(?:hh|h|ll|l|z|j|t|L|q)?"
    r"(?P<kind>p(?:[A-Z]\w*|[egs]\b)?|[diouxXeEfFgGaAcsnmrvqwT])"
    r"|%\((?P<named>\w+)\)[-#0 ]?\d*\.?\d*(?P<kind>[dsrfx])"
    r"|(?P<braces>\{[\w:#.<>!\[\]]{0,60}\})"
    rf"|{GAP.pattern}|(?P<percent>%%)"
)
_BY_KIND = {
    **dict.fromkeys("diou", "3"),
    **dict.fromkeys("eEfFgGaA", "1.5"),
    **dict.fromkeys(("s", "v", "q", "w", "T", "ps", "pV"), ""),
    **{"x": "1f", "X": "1F", "p": "0x7f3a1c000000", "c": "c", "r": "'word-7'", "m": "Connection timed out", "n": ""},
    **{"pJ": "JobId=88012", "ps": "StepId=88012.0", "pe": "-EIO", "pg": "nvme0n1p1", "pM": "94:6d:ae:5c:12:0a"},
}
_BY_NAME = tuple(
    (regex.compile(pattern, regex.IGNORECASE), value)
    for pattern, value in (
        (r"std::endl|^KERN_\w+$|^[A-Z]{2,6}_ERROR\(|^FUNC$", ""),  # marks, not values
        (r"dlerror", "libdemo.so.2: cannot open shared object file: No such file or directory"),
        (r"cudaGetErrorName|CUDA_ERR_NAME", "cudaErrorIllegalAddress"),
        (r"cu\w*ErrorString|hipGetErrorString|\bcuErr|errStr\b", "an illegal memory access was encountered"),
        (r"nvmlErrorString|nvmlDeviceGet|pfn_nvml", "Unknown Error"),
        (r"rsmi_status|rocmsmi", "RSMI_STATUS_UNKNOWN_ERROR"),
        (r"ncclGetErrorString|nccl_net_ofi_\w*error", "unhandled system error"),
        (r"wc_?status_?str", "IBV_WC_RETRY_EXC_ERR"),
        (r"event_?type_?str|event_?name|eventErrDesc|event_str|\beventStr", "port error"),
        (r"fi_strerror|cq_strerror", "No route to host"),
        (r"ucs_status_string|ucs_string", "Endpoint timeout"),
        (r"hsa_status|rocr?_err", "HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
        (r"strerror|\berrno|error_string|errmsg|err_?str|err_msg|os\.error", "Connection timed out"),
        (r"strsignal", "Terminated"),
        (r"\bsignal|\bsig\b", "SIGTERM"),
        (r"ToString|\baddrline\b|sockaddr|\bpeer(?:line|name|addr)|\bline\b|saddr", "10.1.2.3<40121>"),
        (r"url|\buri|registry", "https://registry/v2"),
        (r"status_?code|http_?status", "503"),
        (r"tasks?_str", "task"),
        (r"host|\bserver|node_?(?:name|list)|\bnodes\b|node->name", "gpu-07"),
        (r"shm_?path|shm_?name|tmpPath", "/dev/shm/nccl-Xc4aRd"),
        (r"path|file|dir\b|dir_?name|folder|cwd|prolog|epilog|mount|\bexe\b", "/data/run/part-3"),
        (r"if_?name|ifaName|interface|netdev", "eth0"),
        (r"(?:dev|device|ctx|ib)_?name|hca|disk_name|bdev", "mlx5_0"),
        (r"bus_?id|pci|bdf", "0000:3b:00.0"),
        (r"env\b|getenv", "NCCL_ALGO"),
        (r"__func__|__FUNCTION__|func_?name|fn_?name|func\b", "ncclAllReduce"),
        (r"\bptr|handle", "0x7f3a1c000000"),
        (r"(?<!r)addr\b|_addr|\bip\b|endpoint", "10.1.2.3:40121"),
        (r"\bpid|_pid|\btid\b", "41233"),
        (r"\buid|\bgid|_uid", "1001"),
        (r"\buser", "kim"),
        (r"bytes|\bmem", "8388608"),
        (r"rank|port\b|timeout|seconds|elapsed|duration|deadline|retries|attempt|count|_size|size\(|\bnum", "3"),
        (r"exit_?code|\bindex|\bidx|\bstep|\blen\(|sig(?:num|val)", "3"),
        (r"comm\b|\bcmd|argv", "python3"),
        (r"shape", "torch.Size([4, 8])"),
        (r"dtype", "torch.bfloat16"),
        (r"version", "2.1.0"),
    )
)  # fmt: skip
_COUNTED = regex.compile(
    r"(?i)(?:rank|port|pid|code|after)[:= ]{1,3}\{\}|\{\}[ /]?(?:ms|s\b|sec|byte|worker|client|node|\{\} client)"
)
_UNNAMED = "word-7"


def filled(template: str, arguments: Sequence[str] = (), own: Mapping[str, str] = NONE) -> str:
    """Return a format string (C, Python, `{}` or with gaps) filled with plausible values.

    `arguments` are source texts of the values: `strerror(errno)` becomes the text of an errno. `own` maps patterns of
    such texts to one program's values.
    """
    left = iter(arguments)

    def value(match: regex.Match[str]) -> str:
        if match["percent"]:
            return "%"
        if match["gap"] is not None:
            return value_of(match["gap"], own)
        kind = match["kind"] or "s"
        for _ in range((match["width"] or "").count("*")):
            next(left, "")
        argument = match["named"] or ("" if kind == "m" else next(left, ""))
        if match["braces"]:
            counted = match.group() == "{}" and _COUNTED.search(template[max(match.start() - 12, 0) : match.end() + 10])
            return "3" if counted else value_of(argument or match["braces"], own)
        if kind in ("s", "d", "i", "u"):
            said = value_of(argument, own)
            return said if kind == "s" or said.isdigit() else "3"
        return _BY_KIND.get(kind) or ("10.1.2.3" if kind.startswith("pI") else "" if kind == "n" else _UNNAMED)

    return _PLACE.sub(value, template)


def value_of(expression: str, own: Mapping[str, str] = NONE) -> str:
    """Return an expression's typical printed value, by the names in it."""
    for pattern, value in own.items():
        if regex.search(pattern, expression):
            return value
    return next((value for pattern, value in _BY_NAME if pattern.search(expression)), _UNNAMED)
