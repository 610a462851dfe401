"""The taxonomy: the reasons why a training job fails, and the defaults of each.

Names and categories follow Table 3 of *Characterization of Large Language Model Development in the Datacenter* (NSDI
'24), with two anomalies and Unknown added.
"""

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """One row of the taxonomy: defaults that a rule may override."""

    category: str
    fault: str
    recovery: str
    next_step: str


_INFRASTRUCTURE, _FRAMEWORK, _SCRIPT, _ANOMALY = "Infrastructure", "Framework", "Script", "Anomaly"

REASONS: dict[str, Reason] = {
    "NVLink Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Cordon the node and reset its GPUs and switches; check the NVLink counters before you uncordon it.",
    ),
    "CUDA Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Test the node's GPUs; restart on other nodes, and if the error comes back there, look for it in the code.",
    ),
    "Node Failure": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Cordon the node, restart on the others, and check its console and kernel log for why it disappeared.",
    ),
    "ECC Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Cordon the node and reset the GPU so that the row is remapped; return the board if it fails again.",
    ),
    "Network Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Check the ports and cables of the nodes that report it; restart without them.",
    ),
    "Connection Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "restart",
        "Check that the nodes can reach the service, then restart from the last checkpoint.",
    ),
    "S3 Storage Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "restart",
        "Check the state of the object store; restart from the last checkpoint when it is back.",
    ),
    "NCCL Timeout Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Test the job's nodes pairwise for a slow or dead one; restart without it.",
    ),
    "NCCL Remote Error": Reason(
        _INFRASTRUCTURE,
        "infrastructure",
        "isolate_and_restart",
        "Find the process that ended first on the named peers; test that node and restart without it.",
    ),
    "Dataloader Killed": Reason(
        _FRAMEWORK,
        "nobody",
        "restart",
        "Restart from the last checkpoint; if it happens again, give the workers more memory or start fewer of them.",
    ),
    "Attribute Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Look at the last frame: the object is not of the type the code expects; often a library version mismatch.",
    ),
    "Out of Memory Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Lower the micro batch size, shard or recompute more, or request more memory; a restart alone will fail again.",
    ),
    "Runtime Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Read the quoted error: the program attempts something impossible; it will fail again after every restart.",
    ),
    "Assertion Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Look at the quoted assertion: these settings or data violate a condition of the program.",
    ),
    "Value Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Correct the setting or the data that the quoted line names.",
    ),
    "Zero Division Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Find the divisor in the quoted frame: an empty dataset, split or group is the usual cause.",
    ),
    "Model Loading Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Check that the checkpoint is complete and fits model and parallel layout; if damaged, load an earlier one.",
    ),
    "Dataset Loading Error": Reason(
        _FRAMEWORK,
        "user",
        "fix_first",
        "Check that the named data file is complete and has the format and columns that the loader expects.",
    ),
    "File Not Found Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Correct the path, or mount or create it on every node.",
    ),
    "OS Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Free or increase the resource that the errno names (disk, quota, handles, mount) before the job runs again.",
    ),
    "Type Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Look at the call in the last frame: its arguments do not match; often a library version mismatch.",
    ),
    "Name Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Define or import the quoted name; an optional package may be missing.",
    ),
    "Permission Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Give the job's user access to the named path, or use another path.",
    ),
    "Import Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Install the named package in the job's image, in the version that the code was written for.",
    ),
    "Key Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "The quoted key is missing from the data or the settings.",
    ),
    "Syntax Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Correct the quoted line of the program.",
    ),
    "Argument Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Correct the command line: the quoted option is unknown, missing or has a value that is not allowed.",
    ),
    "Called Process Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Run the quoted helper command by hand on a node and fix the error that it prints.",
    ),
    "Index Error": Reason(
        _SCRIPT,
        "user",
        "fix_first",
        "Look at the quoted index: data, vocabulary and settings do not match.",
    ),
    "Hang": Reason(
        _ANOMALY,
        "unknown",
        "restart",
        "If it is still running, dump the stacks of all ranks (py-spy); otherwise restart from the last checkpoint.",
    ),
    "Loss Spike": Reason(
        _ANOMALY,
        "nobody",
        "rollback_and_skip",
        "Restart from a checkpoint before the spike and skip the data that caused it.",
    ),
    "Unknown": Reason(
        "None",
        "unknown",
        "ask_human",
        "Look at the quoted lines and the end of the log: it contains no known cause.",
    ),
}

CATEGORIES = (_INFRASTRUCTURE, _FRAMEWORK, _SCRIPT, _ANOMALY, "None")
FAULTS = ("user", "infrastructure", "nobody", "unknown")
RECOVERIES = ("restart", "isolate_and_restart", "rollback_and_skip", "fix_first", "ask_human", "none")
OUTCOMES = ("failed", "completed", "running", "cancelled", "recovered", "unknown")

ROLES = ("cause", "proximate", "cascade", "teardown", "note")
"""How close a matched line is to the cause, nearest first. `note` neither fails nor explains a job."""

_BY_EXCEPTION = {
    "FileNotFoundError": "File Not Found Error",
    "NotADirectoryError": "File Not Found Error",
    "ModuleNotFoundError": "Import Error",
    "ImportError": "Import Error",
    "PackageNotFoundError": "Import Error",
    "VersionConflict": "Import Error",
    "AttributeError": "Attribute Error",
    "FrozenInstanceError": "Attribute Error",
    "AssertionError": "Assertion Error",
    "ValueError": "Value Error",
    "UnicodeDecodeError": "Value Error",
    "UnicodeEncodeError": "Value Error",
    "JSONDecodeError": "Value Error",
    "ValidationError": "Value Error",
    "HFValidationError": "Value Error",
    "ConfigError": "Value Error",
    "ZeroDivisionError": "Zero Division Error",
    "TypeError": "Type Error",
    "NameError": "Name Error",
    "UnboundLocalError": "Name Error",
    "PermissionError": "Permission Error",
    "KeyError": "Key Error",
    "ConfigKeyError": "Key Error",
    "ConfigAttributeError": "Attribute Error",
    "SyntaxError": "Syntax Error",
    "IndentationError": "Syntax Error",
    "TabError": "Syntax Error",
    "IndexError": "Index Error",
    "ArgumentError": "Argument Error",
    "InvalidArgumentError": "Value Error",
    "CalledProcessError": "Called Process Error",
    "MemoryError": "Out of Memory Error",
    "OutOfMemoryError": "Out of Memory Error",
    "OSError": "OS Error",
    "IOError": "OS Error",
    "BlockingIOError": "OS Error",
    "FileExistsError": "OS Error",
    "IsADirectoryError": "OS Error",
    "ConnectionError": "Connection Error",
    "ConnectionRefusedError": "Connection Error",
    "ConnectionResetError": "Connection Error",
    "ConnectionAbortedError": "Connection Error",
    "BrokenPipeError": "Connection Error",
    "ConnectTimeout": "Connection Error",
    "ReadTimeout": "Connection Error",
    "MaxRetryError": "Connection Error",
    "HTTPError": "Connection Error",
    "gaierror": "Network Error",
    "ClientError": "S3 Storage Error",
    "EndpointConnectionError": "S3 Storage Error",
    "DatasetGenerationError": "Dataset Loading Error",
    "DataFilesNotFoundError": "Dataset Loading Error",
    "ArrowInvalid": "Dataset Loading Error",
    "SafetensorError": "Model Loading Error",
    "UnpicklingError": "Model Loading Error",
    "UnavailableError": "Connection Error",
    "DeadlineExceededError": "Connection Error",
    "DataLossError": "Dataset Loading Error",
    "ResourceExhaustedError": "Out of Memory Error",
    "UnauthenticatedError": "Permission Error",
    "RuntimeError": "Runtime Error",
    # classes whose name suggests another family than they derive from or mean
    "EnvironmentError": "OS Error",
    "FileExpired": "OS Error",
    "InvalidAPIKey": "Value Error",
    "InvalidConfigName": "Value Error",
    "KeyReuseError": "Type Error",
    "ProjectNameEmpty": "Value Error",
    "ProjectNameIsTooLong": "Value Error",
    "TypePromotionError": "Value Error",
    "AlreadyRegisteredTypeError": "Value Error",
    "UnregisteredTypeError": "Value Error",
    "OverflowError": "Value Error",
    "PicklingError": "Type Error",
    "SerializationError": "Value Error",
    "DeserializationError": "Value Error",
    "UnsupportedOperation": "OS Error",
    "TracerArrayConversionError": "Type Error",
    "TracerBoolConversionError": "Type Error",
    "TracerIntegerConversionError": "Type Error",
    "IndivisibleError": "Value Error",
    "InvalidShardingError": "Value Error",
    "NonUniformShardingError": "Value Error",
    "ShardingTypeError": "Type Error",
    "ShardingNotDivisibleError": "Value Error",
    "ShardingOutOfIndexError": "Index Error",
    "ShardingSpecException": "Value Error",
    "DuplicatedShardingDimensionError": "Value Error",
    "BlocksizeMismatchError": "Value Error",
    "AlreadyExistsError": "Value Error",
    "StepAlreadyExistsError": "Value Error",
    "DeletionPendingError": "Value Error",
    "NoEntryError": "Key Error",
    "HorovodVersionMismatchError": "Import Error",
    "LightningNotInstalledException": "Import Error",
    "ProtocolError": "Connection Error",
    "ProxyError": "Connection Error",
    "ChunkedEncodingError": "Connection Error",
    "RemoteProtocolError": "Connection Error",
    "ServerDisconnectedError": "Connection Error",
    "IncompleteRead": "Connection Error",
    "IncompleteReadError": "Connection Error",
    "MissingSchema": "Value Error",
    "SSLCertVerificationError": "Connection Error",
    "LocationParseError": "Value Error",
    "RequiredSettingMissingError": "Value Error",
    "HfUriError": "Value Error",
    "CheckpointMisconfigurationError": "Value Error",
    "DatasetNotOnHfGcsError": "Connection Error",
    "MissingFilesOnHfGcsError": "Connection Error",
    "RecursiveDependencyError": "Runtime Error",
    "DivisionByZeroError": "Zero Division Error",
    "OOBError": "Index Error",
}

_BY_FAMILY = (
    ("notfound", "File Not Found Error"),
    ("filemissing", "File Not Found Error"),
    ("permission", "Permission Error"),
    ("accessdenied", "Permission Error"),
    ("forbidden", "Permission Error"),
    ("outofmemory", "Out of Memory Error"),
    ("memoryerror", "Out of Memory Error"),
    ("import", "Import Error"),
    ("dependency", "Import Error"),
    ("syntax", "Syntax Error"),
    ("parser", "Syntax Error"),
    ("argument", "Argument Error"),
    ("usage", "Argument Error"),
    ("option", "Argument Error"),
    ("checkpoint", "Model Loading Error"),
    ("statedict", "Model Loading Error"),
    ("dataset", "Dataset Loading Error"),
    ("shard", "Dataset Loading Error"),
    ("corrupt", "Dataset Loading Error"),
    ("checksum", "Dataset Loading Error"),
    ("connect", "Connection Error"),
    ("timeout", "Connection Error"),
    ("http", "Connection Error"),
    ("network", "Network Error"),
    ("ssl", "Connection Error"),
    ("assert", "Assertion Error"),
    ("index", "Index Error"),
    ("key", "Key Error"),
    ("attribute", "Attribute Error"),
    ("type", "Type Error"),
    ("name", "Name Error"),
    ("config", "Value Error"),
    ("validation", "Value Error"),
    ("invalid", "Value Error"),
    ("value", "Value Error"),
    ("decode", "Value Error"),
    ("subprocess", "Called Process Error"),
    ("oserror", "OS Error"),
    ("ioerror", "OS Error"),
)


def reason_of_exception(qualified_name: str) -> str:
    """Return the reason of an exception class, by its name, else by its family; never fails.

    >>> reason_of_exception("builtins.KeyError"), reason_of_exception("acme.ShardNotFoundError")
    ('Key Error', 'File Not Found Error')
    """
    name = qualified_name.rsplit(".", 1)[-1]
    if name in _BY_EXCEPTION:
        return _BY_EXCEPTION[name]
    lowered = name.lower()
    words = {word.lower() for word in _WORD.findall(name)}
    return next((reason for part, reason in _BY_FAMILY if _is_of_family(part, lowered, words)), "Runtime Error")


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _is_of_family(part: str, name: str, words: set[str]) -> bool:
    """Return whether a class name contains a family's word. A short word must be a whole part ("Key", not "Monkey")."""
    return part in words if len(part) <= 4 else part in name


_FIND_NODE = "find the faulty node: test the job's nodes, then restart"
ADVICE = {
    "restart": "restart from the last checkpoint",
    "isolate_and_restart": "cordon the node, then restart",
    "rollback_and_skip": "roll back before the spike, skip the data",
    "fix_first": "do not restart: fix first",
    "ask_human": "do not restart yet: ask a person",
    "none": "nothing to do",
}
"""Recoveries in words for people."""


def advice(recovery: str, nodes: bool) -> str:
    """Return a recovery in words; `nodes` says whether there is a node to cordon."""
    return _FIND_NODE if recovery == "isolate_and_restart" and not nodes else ADVICE[recovery]


def title(reason: str, outcome: str, detail: str = "") -> str:
    """Return the title of a verdict: its reason or detail, or how the job ended."""
    if reason == "Unknown" and detail:
        return detail[:1].upper() + detail[1:]
    if reason != "None":
        return reason
    return "End unknown" if outcome == "unknown" else outcome.capitalize()


FAULT_WORDS = {
    "user": "the user's code, data or quota",
    "infrastructure": "the infrastructure",
    "nobody": "none",
    "unknown": "unknown",
}
"""Faults in words for people."""

_AGAINST = {"user": (_INFRASTRUCTURE,), "infrastructure": (_FRAMEWORK, _SCRIPT)}
"""The categories that contradict a fault for whoever reads both."""


def category_words(category: str, fault: str) -> str:
    """Return the category of a failure in words for people. It is that of the reason; where it contradicts the fault of
    this failure, it is called the usual one."""
    return f"usually {category}" if category in _AGAINST.get(fault, ()) else category
