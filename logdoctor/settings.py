"""Everything that can be set, in one place. Only this module reads the environment."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from logdoctor.errors import SettingsError

PREFIX = "LOGDOCTOR_"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with their defaults; the environment variable of `workers` is LOGDOCTOR_WORKERS."""

    rules: Path | None = None
    cache_dir: Path | None = None
    workers: int = 0
    block_bytes: int = 4 << 20
    max_decompressed_bytes: int = 1 << 40
    max_expansion: int = 2000
    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path | None = None
    database_url: str = ""
    auth: Literal["auto", "on"] = "auto"
    labels: str = ""
    max_body_bytes: int = 64 << 20
    max_stream_bytes: int = 1 << 40
    max_streams: int = 20_000
    max_open_streams: int = 20_000
    rate_limit: int = 5000
    slow_seconds: float = 30.0
    scan_seconds: float = 1.0
    quiet_seconds: float = 60.0
    hang_seconds: float = 900.0
    linger_seconds: float = 60.0
    abandon_seconds: float = 86_400.0
    journal_bytes: int = 64 << 20
    min_free_bytes: int = 256 << 20
    retention_days: float = 30.0
    retention_bytes: int = 0
    url: str = "http://127.0.0.1:8080"
    token: str = ""
    job: str = ""
    spool_dir: Path | None = None
    learn: Literal["auto", "model", "miner", "off"] = "auto"
    learn_runs: int = 5
    learn_jobs: int = 2
    learn_lines: int = 10
    learn_recheck: int = 10
    llm_base_url: str = ""
    llm_model: str = ""
    llm_key: str = ""
    llm_key_file: Path | None = None
    llm_output: Literal["auto", "json_schema", "json", "tools", "text"] = "auto"
    llm_seconds: float = 60.0
    llm_calls_per_job: int = 40
    llm_calls_per_hour: int = 400
    llm_tokens_per_hour: int = 2_000_000
    llm_dollars_in: float = 0.0
    llm_dollars_out: float = 0.0
    llm_tokens_per_job: int = 200_000
    llm_tokens_per_day: int = 20_000_000
    llm_tokens_in_all: int = 0
    llm_dollars_per_day: float = 0.0
    llm_dollars_in_all: float = 0.0
    mask: Literal["on", "off"] = "on"
    mask_hosts: bool = False
    mask_ips: bool = False
    cases: Literal["on", "off"] = "on"
    embedding_model: str = ""
    chroma_url: str = ""
    case_similarity: float = 0.8
    case_agreement: int = 2
    agent: Literal["auto", "off"] = "auto"
    agent_samples: int = 3
    agent_confidence: float = 0.6
    agent_below: float = 0.7
    agent_tool_calls: int = 6
    confirm_attempts: int = 3
    launcher: Literal["", "slurm", "ssh", "kubernetes", "local"] = ""
    act_test: Literal["auto", "ask", "never"] = "ask"
    act_cordon: Literal["auto", "ask", "never"] = "ask"
    act_reboot: Literal["ask", "never"] = "ask"
    act_inspect: Literal["ask", "never"] = "ask"
    act_restart: Literal["ask", "never"] = "ask"
    cordon_with: Literal["dry-run", "slurm", "kubernetes", "file"] = "dry-run"
    cordon_file: Path | None = None
    fleet: str = ""
    cordon_owner: str = "logdoctor"
    cordon_share: float = 0.05
    cordon_at_once: int = 4
    cordon_per_hour: int = 2
    test_seconds: float = 60.0
    test_minutes: float = 30.0
    test_repeats: int = 1
    test_repeats_after_steps: int = 20
    test_regroup: int = 3
    test_slow_share: float = 0.7
    test_slow_share_cpu: float = 0.1
    test_floors: str = ""
    test_sizes: str = ""
    test_gpus: int = 0
    test_port: int = 20_000
    test_python: str = "python3"
    test_env: str = ""
    test_topology: Path | None = None
    local_nodes: int = 4
    slurm_options: str = ""
    ssh_hosts: Path | None = None
    ssh_config: Path | None = None
    ssh_user: str = ""
    ssh_key: Path | None = None
    ssh_known_hosts: Path | None = None
    kube_config: Path | None = None
    kube_context: str = ""
    kube_namespace: str = "default"
    kube_image: str = ""
    kube_resources: str = ""
    kube_pod: str = ""
    kube_selector: str = ""
    public_url: str = ""
    notify_webhooks: str = ""
    notify_webhook_secrets: str = ""
    notify_slack: str = ""
    notify_settle_seconds: float = 20.0
    notify_per_minute: int = 5
    notify_resolved: Literal["on", "off"] = "on"
    notify_quiet: str = ""
    notify_timezone: str = "UTC"
    notify_quiet_except: str = "isolate_and_restart,ask_human"
    notify_seconds: float = 10.0
    notify_proxy: str = ""
    notify_retention_days: float = 90.0


class Help(NamedTuple):
    """What a setting means, for the documentation."""

    name: str
    default: str
    meaning: str


MEANINGS = {
    "rules": "folder of the rules; default: those that came with logdoctor",
    "cache_dir": "where compiled rules are kept; default: $XDG_CACHE_HOME/logdoctor or ~/.cache/logdoctor",
    "workers": "processes that scan a log; 0 means one for each core",
    "block_bytes": "bytes that are scanned at a time, 64 KiB to 64 MiB; memory grows with it",
    "max_decompressed_bytes": "a compressed log that unpacks to more is refused",
    "max_expansion": "a compressed log that unpacks to more than this many times its size (and over 64 MiB) is refused",
    "host": "`serve`: address to listen on; off loopback every request needs a token",
    "port": "`serve`: port to listen on; 0 takes a free one",
    "data_dir": "`serve`: folder for logs and records; default: $XDG_DATA_HOME/logdoctor or ~/.local/share/logdoctor",
    "database_url": "`serve`: SQLAlchemy URL of the records; default: a SQLite file in the data folder",
    "auth": "`serve`: `on` wants tokens on loopback, too (behind a proxy); `auto` wants them anywhere else",
    "labels": "`serve`: which labels of Loki and OTLP pushes name job, attempt and stream; see docs/service.md",
    "max_body_bytes": "`serve`: a larger request body, as sent, is refused; also what a push may unpack to",
    "max_stream_bytes": "`serve`: bytes that one stream may have",
    "max_streams": "`serve`: streams that one attempt may have",
    "max_open_streams": "`serve`: streams that may be in memory at once; more are told to wait",
    "rate_limit": "`serve`: requests per second of one token (without tokens: of one address); 0 means any",
    "slow_seconds": "`serve`: a client that sends nothing of a request for so long is cut off",
    "scan_seconds": "`serve`: lines are compressed at the latest so long after they came",
    "quiet_seconds": "`serve`: an attempt that has sent nothing for so long is looked at",
    "hang_seconds": "`serve`: a job that has made no step for so long, and says nothing of an error, hangs",
    "linger_seconds": "`serve`: a settled attempt stays in memory so long, for late bytes",
    "abandon_seconds": "`serve`: an attempt that has sent nothing for so long counts as ended",
    "journal_bytes": "`serve`: bytes that the journal holds before they are moved to the archive",
    "min_free_bytes": "`serve`: below so much free space nothing is taken (507), so that what was taken can be kept",
    "retention_days": "`serve`: raw logs of settled attempts are deleted after so long, verdicts never; 0 keeps all",
    "retention_bytes": "`serve`: the oldest raw logs of settled attempts are deleted above so much; 0 means no limit",
    "url": "`run`, `ship`: the service to send to",
    "token": "`run`, `ship`: the token to send with",
    "job": "`run`, `ship`: the job when --job is not given",
    "spool_dir": "`run`: where bytes wait that could not be sent; default: ~/.cache/logdoctor/spool",
    "learn": "who writes filter rules: `miner`, `model`, `off`; `auto`: the miner, advised by the model if one is set",
    "learn_runs": "runs over each sample, which vote on what they propose",
    "learn_jobs": "a learned rule takes lines after so many attempts or one that ended well; 0: once approved",
    "learn_lines": "... and so many lines; one attempt that shows so many lines of it is enough, too",
    "learn_recheck": "one failed attempt in so many, and each that a new rule thinned, is diagnosed again; 0: none",
    "llm_base_url": "URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1",
    "llm_model": "the model to ask there",
    "llm_key": "the key to ask with",
    "llm_key_file": "a file that holds the key",
    "llm_output": "how the model is told to answer in JSON; `auto` takes the strictest way that the server knows",
    "llm_seconds": "a call to the model is given up after so long",
    "llm_calls_per_job": "calls to the model because of one job, at most",
    "llm_calls_per_hour": "calls to the model in an hour, at most",
    "llm_tokens_per_hour": "tokens sent to and got from the model in an hour, at most",
    "llm_dollars_in": "price of a million tokens sent, for the metrics",
    "llm_dollars_out": "price of a million tokens got, for the metrics",
    "llm_tokens_per_job": "tokens sent and got because of one job, at most",
    "llm_tokens_per_day": "tokens sent and got in 24 hours, at most",
    "llm_tokens_in_all": "tokens sent and got ever, at most; 0 means no limit",
    "llm_dollars_per_day": "dollars spent in 24 hours, at most; 0 means no limit",
    "llm_dollars_in_all": "dollars spent ever, at most; 0 means no limit",
    "mask": "passwords, keys, tokens and e-mail addresses are masked in all that is sent to a model; `off` sends them",
    "mask_hosts": "host names are masked, too",
    "mask_ips": "IP addresses are masked, too",
    "cases": "whether failures that no rule knows are looked up among confirmed ones",
    "embedding_model": "sentence-transformers model, a name or a folder; default: all-MiniLM-L6-v2, which is installed",
    "chroma_url": "Chroma server for the vectors of past cases; default: in the data folder",
    "case_similarity": "cosine from which on two failures count as close",
    "case_agreement": "close past cases that must agree before they decide",
    "agent": "whether the model is asked about failures that neither rule nor case knows; `auto`: if one is set",
    "agent_samples": "answers of the model that vote when the first is not sure",
    "agent_confidence": "below it the answer of the model counts as Unknown",
    "agent_below": "confidence of a verdict by rules below which the model is asked, too",
    "agent_tool_calls": "looks into the log that the model may take for one answer",
    "confirm_attempts": "attempts in which the model must agree until that counts as confirmed; 0: only people do",
    "launcher": "how probes get to the nodes of a job that are to be tested; none: nothing is tested by itself",
    "act_test": "tests of a job's nodes after a failure of the infrastructure: `auto`, `ask` (a person) or `never`",
    "act_cordon": "cordoning nodes that a test found faulty: `auto`, `ask` or `never`",
    "act_reboot": "advice to reboot a faulty node: `ask` queues it for a person",
    "act_inspect": "advice to inspect the hardware of a node that two reboots did not mend",
    "act_restart": "advice to restart a job",
    "cordon_with": "what cordons nodes; `dry-run` only says what it would do",
    "cordon_file": "the list of cordoned nodes that `file` keeps",
    "fleet": "all nodes, `gpu-[001-588]`, where no cluster tells; default: those that were ever tested",
    "cordon_owner": "who cordons, as it stands on the node; services that share a cluster need names of their own",
    "cordon_share": "of all nodes of the cluster no more than this share may be cordoned, whoever did it",
    "cordon_at_once": "nodes cordoned by us at one time, at most",
    "cordon_per_hour": "nodes cordoned by us in an hour, at most",
    "test_seconds": "a probe gives up after so long",
    "test_minutes": "after so long no further round of a test begins",
    "test_repeats": "gathers in each world of a test; faults that come and go want more",
    "test_repeats_after_steps": "the same after a failure of a job that had made steps",
    "test_regroup": "while nothing has passed, all nodes are paired anew so many times",
    "test_slow_share": "a world below this share of the median bandwidth (or GPU speed) of its kind is slow",
    "test_slow_share_cpu": "the same where nodes have no GPUs, and speeds scatter",
    "test_floors": "GB/s below which a world is slow, by type of GPU: `H100=300,A100=150`",
    "test_sizes": "bytes that a gather yields, `1048576,268435456`; default: what fits the device",
    "test_gpus": "GPUs of each node that take part; 0: all",
    "test_port": "first of the 2,000 ports that worlds listen on",
    "test_python": "the Python with torch on the nodes",
    "test_env": "environment of the probe, `NCCL_SOCKET_IFNAME=ib0,NCCL_DEBUG=WARN`; all on the node can read it",
    "test_topology": "Slurm's topology.conf, where the launcher does not know which switch a node hangs on",
    "local_nodes": "nodes of the launcher `local`, which are processes of this machine",
    "slurm_options": "further options of srun, such as `--partition=debug --account=ops`",
    "ssh_hosts": "file of nodes, a line each: `NAME [USER@]HOST[:PORT] [ADDRESS of the fabric] [GROUP]`",
    "ssh_config": "OpenSSH client configuration; default: ~/.ssh/config",
    "ssh_user": "user on the nodes",
    "ssh_key": "file of the private key",
    "ssh_known_hosts": "file of the host keys; default: ~/.ssh/known_hosts",
    "kube_config": "kubeconfig; default: that of the pod, else ~/.kube/config",
    "kube_context": "context in it",
    "kube_namespace": "where Jobs of probes run",
    "kube_image": "image of the probe, with Python and torch",
    "kube_resources": "limits of its container, `nvidia.com/gpu=8,rdma/hca=1`",
    "kube_pod": "more of its pod, `shared_memory=16Gi,capability=IPC_LOCK,pull_secret=NAME,privileged=true`",
    "kube_selector": "label selector of the nodes that are meant where none are named",
    "public_url": "where people reach the pages, `https://logdoctor.example`, for links in messages; none: no links",
    "notify_webhooks": "whom incidents are told as signed webhooks, `NAME=URL NAME=URL`; see docs/notifications.md",
    "notify_webhook_secrets": "what they are signed with, `NAME=whsec_...`; several of one NAME while one is replaced",
    "notify_slack": "incoming webhooks of Slack, or of what takes the same, `NAME=URL NAME=URL`",
    "notify_settle_seconds": "an incident is told when its verdict is final, or provisional for so long",
    "notify_per_minute": "messages a minute to one target; more are put into one",
    "notify_resolved": "whether it is told, too, that an incident that was told is resolved",
    "notify_quiet": "hours in which messages are held back, `22:00-07:00`; then they come as one",
    "notify_timezone": "time zone of these hours, `Europe/Berlin`",
    "notify_quiet_except": "recoveries whose incidents are told in these hours, too",
    "notify_seconds": "a message is given up after so long, and tried again later",
    "notify_proxy": "HTTP proxy for messages, `http://proxy:3128`; default: none, whatever the environment says",
    "notify_retention_days": "delivered messages go after so long, given up ones after four times that; 0 keeps all",
}
_SECRET = {
    "token",
    "database_url",
    "llm_key",
    "notify_webhooks",
    "notify_webhook_secrets",
    "notify_slack",
    "notify_proxy",
}
_RANGES: dict[str, tuple[float, float]] = {
    "workers": (0, 256),
    "block_bytes": (1 << 16, 1 << 26),
    "max_decompressed_bytes": (1, math.inf),
    "max_expansion": (1, math.inf),
    "port": (0, 65535),
    "max_body_bytes": (1 << 16, 1 << 34),
    "max_stream_bytes": (1, math.inf),
    "max_streams": (1, 1_000_000),
    "max_open_streams": (1, 1_000_000),
    "rate_limit": (0, math.inf),
    "slow_seconds": (0.1, 3600),
    "scan_seconds": (0.01, 60),
    "quiet_seconds": (0.1, math.inf),
    "hang_seconds": (0.1, math.inf),
    "linger_seconds": (0, math.inf),
    "abandon_seconds": (1, math.inf),
    "journal_bytes": (1 << 20, 1 << 34),
    "min_free_bytes": (0, math.inf),
    "retention_days": (0, math.inf),
    "retention_bytes": (0, math.inf),
    "learn_runs": (1, 25),
    "learn_jobs": (0, 1000),
    "learn_lines": (1, math.inf),
    "learn_recheck": (0, math.inf),
    "llm_seconds": (0.1, 3600),
    "llm_calls_per_job": (0, math.inf),
    "llm_calls_per_hour": (0, math.inf),
    "llm_tokens_per_hour": (0, math.inf),
    "llm_dollars_in": (0, math.inf),
    "llm_dollars_out": (0, math.inf),
    "llm_tokens_per_job": (0, math.inf),
    "llm_tokens_per_day": (0, math.inf),
    "llm_tokens_in_all": (0, math.inf),
    "llm_dollars_per_day": (0, math.inf),
    "llm_dollars_in_all": (0, math.inf),
    "case_similarity": (0, 1),
    "case_agreement": (1, 100),
    "agent_samples": (1, 25),
    "agent_confidence": (0, 1),
    "agent_below": (0, 1),
    "agent_tool_calls": (0, 50),
    "confirm_attempts": (0, 1000),
    "cordon_share": (0, 1),
    "cordon_at_once": (0, math.inf),
    "cordon_per_hour": (0, math.inf),
    "test_seconds": (5, 3600),
    "test_minutes": (1, 1440),
    "test_repeats": (1, 10_000),
    "test_repeats_after_steps": (1, 10_000),
    "test_regroup": (0, 100),
    "test_slow_share": (0, 1),
    "test_slow_share_cpu": (0, 1),
    "test_gpus": (0, 64),
    "test_port": (1024, 63_000),
    "local_nodes": (1, 1024),
    "notify_settle_seconds": (0, 3600),
    "notify_per_minute": (1, 1000),
    "notify_seconds": (0.5, 60),
    "notify_retention_days": (0, math.inf),
}
"""What a number may be: the least and the greatest."""


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; `SettingsError` for an unknown LOGDOCTOR_* variable or a bad value."""
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.endswith("_COMPLETE"):  # shell completion is click's own
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.__struct_fields__:
            raise SettingsError(variable, "there is no such setting", "See the table of settings in README.md.")
        given[name] = value
    settings = Settings(**{name: _converted(name, value) for name, value in given.items()})
    for name, (least, most) in _RANGES.items():
        if not least <= getattr(settings, name) <= most:
            raise SettingsError(
                f"{PREFIX}{name.upper()}",
                f"{getattr(settings, name)} is out of range",
                f"Use {least} to {most}." if most < math.inf else f"Use {least} or more.",
            )
    return settings


def _converted(name: str, value: str) -> Any:
    """The value of one setting in its type."""
    variable = f"{PREFIX}{name.upper()}"
    try:
        return msgspec.convert(value, get_type_hints(Settings)[name], strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        shown = "its value" if name in _SECRET else repr(value)
        raise SettingsError(
            variable, f"{shown} cannot be used ({error})", "See the table of settings in README.md."
        ) from error


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value).expanduser()
    raise NotImplementedError(f"no setting has the type {kind}")


def environment() -> dict[str, str]:
    """The environment that programs of others, such as srun, are started with."""
    return dict(os.environ)


def rules_folder(settings: Settings) -> Path:
    """The folder with the rules: as set, of the wheel, or of the source tree."""
    if settings.rules:
        return settings.rules
    package = Path(__file__).resolve().parent
    bundled = package / "data" / "rules"
    return bundled if bundled.is_dir() else package.parent / "rules"


def prompts_folder(settings: Settings) -> Path:
    """The folder with the prompts: of the wheel, or of the source tree."""
    package = Path(__file__).resolve().parent
    bundled = package / "data" / "prompts"
    return bundled if bundled.is_dir() else package.parent / "prompts"


def llm_key(settings: Settings) -> str:
    """The key of the model: as set, else out of its file; "" when there is none. `SettingsError` for a bad file."""
    if settings.llm_key or settings.llm_key_file is None:
        return settings.llm_key
    try:
        return settings.llm_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        variable = f"{PREFIX}LLM_KEY_FILE"
        raise SettingsError(variable, f"its file cannot be read ({error})", "Check the path and its rights.") from error


def cache_folder(settings: Settings) -> Path:
    """The folder for compiled rules; it may not exist yet."""
    if settings.cache_dir:
        return settings.cache_dir
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "logdoctor"


def data_folder(settings: Settings) -> Path:
    """The folder for logs and records; it may not exist yet."""
    if settings.data_dir:
        return settings.data_dir
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "logdoctor"


def table() -> list[Help]:
    """One row for each setting, for README.md and its test."""
    defaults = Settings()
    return [
        Help(f"{PREFIX}{name.upper()}", "" if (default := getattr(defaults, name)) is None else str(default), meaning)
        for name, meaning in MEANINGS.items()
    ]
