"""The reasons a training job fails for, and what each means when nothing more is known.

Names and categories follow Table 3 of *Characterization of Large Language Model Development in the
Datacenter* (NSDI '24), with two anomalies and Unknown added.
"""

from typing import NamedTuple


class Reason(NamedTuple):
    """One row of the taxonomy: defaults that a rule may override."""

    category: str
    fault: str
    recovery: str


_INFRASTRUCTURE, _FRAMEWORK, _SCRIPT, _ANOMALY = "Infrastructure", "Framework", "Script", "Anomaly"

REASONS: dict[str, Reason] = {
    "NVLink Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "CUDA Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "Node Failure": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "ECC Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "Network Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "Connection Error": Reason(_INFRASTRUCTURE, "infrastructure", "restart"),
    "S3 Storage Error": Reason(_INFRASTRUCTURE, "infrastructure", "restart"),
    "NCCL Timeout Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "NCCL Remote Error": Reason(_INFRASTRUCTURE, "infrastructure", "isolate_and_restart"),
    "Dataloader Killed": Reason(_FRAMEWORK, "nobody", "restart"),
    "Attribute Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Out of Memory Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Runtime Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Assertion Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Value Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Zero Division Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Model Loading Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "Dataset Loading Error": Reason(_FRAMEWORK, "user", "fix_first"),
    "File Not Found Error": Reason(_SCRIPT, "user", "fix_first"),
    "OS Error": Reason(_SCRIPT, "user", "fix_first"),
    "Type Error": Reason(_SCRIPT, "user", "fix_first"),
    "Name Error": Reason(_SCRIPT, "user", "fix_first"),
    "Permission Error": Reason(_SCRIPT, "user", "fix_first"),
    "Import Error": Reason(_SCRIPT, "user", "fix_first"),
    "Key Error": Reason(_SCRIPT, "user", "fix_first"),
    "Syntax Error": Reason(_SCRIPT, "user", "fix_first"),
    "Argument Error": Reason(_SCRIPT, "user", "fix_first"),
    "Called Process Error": Reason(_SCRIPT, "user", "fix_first"),
    "Index Error": Reason(_SCRIPT, "user", "fix_first"),
    "Hang": Reason(_ANOMALY, "unknown", "restart"),
    "Loss Spike": Reason(_ANOMALY, "nobody", "rollback_and_skip"),
    "Unknown": Reason("None", "unknown", "ask_human"),
}

CATEGORIES = (_INFRASTRUCTURE, _FRAMEWORK, _SCRIPT, _ANOMALY, "None")
FAULTS = ("user", "infrastructure", "nobody", "unknown")
RECOVERIES = ("restart", "isolate_and_restart", "rollback_and_skip", "fix_first", "ask_human", "none")
OUTCOMES = ("failed", "completed", "running", "cancelled", "recovered")

ROLES = ("cause", "proximate", "cascade", "teardown", "note")
"""How close to the cause a matched line stands, nearest first. `note` neither fails nor explains a job."""

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
    "RuntimeError": "Runtime Error",
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
    """The reason an exception class stands for, by its name and else by its family; never fails.

    >>> reason_of_exception("builtins.KeyError"), reason_of_exception("acme.ShardNotFoundError")
    ('Key Error', 'File Not Found Error')
    """
    name = qualified_name.rsplit(".", 1)[-1]
    if name in _BY_EXCEPTION:
        return _BY_EXCEPTION[name]
    lowered = name.lower()
    return next((reason for part, reason in _BY_FAMILY if part in lowered), "Runtime Error")
