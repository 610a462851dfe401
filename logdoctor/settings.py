"""All settings, in one place. Only this module reads the environment."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Meta

from logdoctor.errors import SettingsError
from logdoctor.safe.env_file import read_env_file
from logdoctor.types.launchers import LauncherName

PREFIX = "LOGDOCTOR_"
_NEXT_STEP = "See docs/settings.md."
_hints = cache(get_type_hints)  # which reads all annotations anew
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def about(meaning: str, least: float | None = None, most: float | None = None, secret: bool = False) -> Meta:
    """Return what annotates a setting: meaning, range, and whether messages must hide its value."""
    return Meta(description=meaning, ge=least, le=most, extra={"secret": secret})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with their type, range, meaning and default; LOGDOCTOR_WORKERS sets `workers`. An empty path counts as
    unset."""

    # Diagnosis
    rules: Annotated[Path | None, about("folder of rules; default: the rules that ship with logdoctor")] = None
    cache_dir: Annotated[
        Path | None, about("folder for compiled rules; default: ~/.cache/logdoctor, under $XDG_CACHE_HOME if set")
    ] = None
    workers: Annotated[int, about("processes that scan a log; 0: one per core", 0, 256)] = 0
    block_bytes: Annotated[
        int, about("bytes scanned at a time, 64 KiB to 64 MiB; memory use grows with it", 1 << 16, 1 << 26)
    ] = 4 << 20
    max_decompressed_bytes: Annotated[int, about("largest size a compressed log may unpack to", 1)] = 1 << 40
    max_expansion: Annotated[
        int,
        about("largest ratio a compressed log may unpack by (checked above 64 MiB; a request body above 16 MiB)", 1),
    ] = 2000
    more_rules: Annotated[
        tuple[Path, ...],
        about("folders of rules, separated by `:`, laid over `rules`: beside them, or in the place of the same file"),
    ] = ()

    # Service
    host: Annotated[str, about("address to listen on; anywhere but loopback, every request needs a token")] = (
        "127.0.0.1"
    )
    port: Annotated[int, about("port to listen on; 0: any free port", 0, 65_535)] = 8080
    data_dir: Annotated[
        Path | None,
        about("folder for logs and records; default: ~/.local/share/logdoctor, under $XDG_DATA_HOME if set"),
    ] = None
    env_file: Annotated[
        Path | None, about("file with more of these variables, `NAME=value` a line; the environment goes before it")
    ] = None
    database_url: Annotated[
        str,
        about("URL of the database, SQLite or PostgreSQL 15+; default: a SQLite file in the data folder", secret=True),
    ] = ""
    auth: Annotated[
        Literal["auto", "on"], about("`on`: require tokens on loopback too (behind a proxy); `auto`: only elsewhere")
    ] = "auto"
    labels: Annotated[
        str, about("labels of Loki and OTLP pushes that name job, attempt and stream; see docs/service.md")
    ] = ""
    max_body_bytes: Annotated[
        int, about("largest request body, as sent; also the largest size a push may unpack to", 1 << 16, 1 << 34)
    ] = 64 << 20
    max_stream_bytes: Annotated[int, about("largest size of one stream", 1)] = 1 << 40
    max_streams: Annotated[int, about("most streams per attempt", 1, 1_000_000)] = 20_000
    rate_limit: Annotated[int, about("requests per second per token (per address without tokens); 0: no limit", 0)] = (
        5000
    )
    new_jobs_per_push: Annotated[
        int, about("most attempts that one push may begin; others are refused (429) until it comes again; 0: any", 0)
    ] = 200
    new_jobs_per_minute: Annotated[
        int, about("most attempts that may begin in a minute with one token (from one address without); 0: any", 0)
    ] = 1000
    slow_seconds: Annotated[
        float, about("drop a client that sends no part of its request for this long", 0.1, 3600)
    ] = 30.0
    scan_seconds: Annotated[float, about("compress new lines within this time", 0.01, 60)] = 1.0
    quiet_seconds: Annotated[float, about("check an attempt that has sent nothing for this long", 0.1)] = 60.0
    hang_seconds: Annotated[
        float, about("no step for this long, and no error, is a Hang, until the pace of a job is known", 0.1)
    ] = 900.0
    hang_least_seconds: Annotated[
        float, about("no step for less than this is no Hang, however quick the steps were", 0.1)
    ] = 300.0
    linger_seconds: Annotated[float, about("keep a settled attempt in memory for this long, for late bytes", 0)] = 60.0
    abandon_seconds: Annotated[float, about("treat an attempt that has sent nothing for this long as ended", 1)] = (
        86_400.0
    )
    archive_url: Annotated[
        str, about("where logs are archived: s3://BUCKET/PREFIX, or a folder; default: archive in the data folder")
    ] = ""
    lease_seconds: Annotated[
        float, about("seconds after which others take over the jobs of a worker that was not heard of", 0.5, 3600)
    ] = 10.0
    role: Annotated[
        Literal["all", "web", "worker"],
        about("what `serve` does: take logs and answer (`web`), compress and judge (`worker`), or both"),
    ] = "all"
    redis_url: Annotated[
        str, about("Redis for wake-ups and limits that several processes share; needed by none", secret=True)
    ] = ""
    serve_workers: Annotated[
        int, about("processes that compress and judge, beside the one that serves; 0: it does so itself", 0, 1024)
    ] = 1
    log_bytes: Annotated[
        int, about("bytes that may wait for compression and archiving before senders wait, too", 1 << 20, 1 << 36)
    ] = 256 << 20
    min_free_bytes: Annotated[int, about("refuse new bytes (507) below this much free disk space", 0)] = 256 << 20
    retention_days: Annotated[
        float, about("days after which raw logs of settled attempts are deleted, verdicts never; 0: never", 0)
    ] = 30.0
    retention_bytes: Annotated[
        int, about("delete the oldest raw logs of settled attempts above this size; 0: no limit", 0)
    ] = 0

    otlp_url: Annotated[
        str,
        about("OpenTelemetry collector that traces are sent to, `http://collector:4318`; empty: none", secret=True),
    ] = ""

    # Single sign-on
    sso_user_header: Annotated[
        str,
        about(
            "header in which a proxy says who has signed in, `X-Forwarded-Email`; empty: people sign in with a token"
        ),
    ] = ""
    sso_proxies: Annotated[
        str,
        about("addresses of the proxies that are believed, `10.0.4.7 10.1.0.0/28`; from others the header is ignored"),
    ] = ""
    sso_scopes: Annotated[str, about("scopes of everybody who has signed in through the proxy, `read,operate`")] = (
        "read"
    )
    sso_groups_header: Annotated[
        str, about("header in which the proxy says the person's groups, separated by commas, `X-Forwarded-Groups`")
    ] = ""
    sso_groups: Annotated[str, about("further scopes by group, `oncall=operate platform=operate,admin`")] = ""

    # Sending logs (`run`, `ship`)
    url: Annotated[
        str,
        about(
            "URL of the service that commands such as `logdoctor incidents` ask, and that `run` and `ship` send to; "
            "default: the data folder, and http://127.0.0.1:8080"
        ),
    ] = ""
    token: Annotated[str, about("token to ask and to send with", secret=True)] = ""
    job: Annotated[str, about("job to send as, when --job is not given")] = ""
    spool_dir: Annotated[
        Path | None, about("folder for bytes that could not be sent yet; default: ~/.cache/logdoctor/spool")
    ] = None
    state_dir: Annotated[
        Path | None, about("folder for records of jobs that are restarted; default: ~/.local/state/logdoctor/jobs")
    ] = None
    attempt_key: Annotated[str, about("key of the attempt to send as; `run --restart` sets it for its command")] = ""
    resume: Annotated[str, about("checkpoint to load; `run --restart` sets it for its command")] = ""
    skip_batches: Annotated[
        str, about("global batches to leave out, `1-200,300-320`; `run --restart` sets it for its command")
    ] = ""
    progress: Annotated[
        str,
        about(
            "for `run --restart`: a regular expression with one group around the step in a line, `step=(\\d+)`; "
            "default: steps are found by themselves"
        ),
    ] = ""
    done_file: Annotated[
        str,
        about(
            "the file that the program may make when its training is complete; `run --restart` sets it for its command"
        ),
    ] = ""
    stacks: Annotated[
        str, about("how `run --restart` may ask ranks where they hang: `faulthandler`, `py-spy`, `flight-recorder`")
    ] = ""
    stacks_dir: Annotated[
        str, about("where ranks leave their stacks when they are asked; `run --restart` sets it for its command")
    ] = ""

    witness_seconds: Annotated[
        int, about("how long `run` asks other sources about a failed command, in seconds; 0: not at all")
    ] = 5

    # Learning filter rules
    learn: Annotated[
        Literal["auto", "model", "miner", "off"],
        about("who writes filter rules; `auto`: the miner, advised by the model if one is set"),
    ] = "auto"
    learn_runs: Annotated[int, about("runs over each sample that vote on proposals", 1, 25)] = 5
    learn_jobs: Annotated[
        int, about("attempts, or one that succeeded, that activate a learned rule; 0: only a person does", 0, 1000)
    ] = 2
    learn_lines: Annotated[
        int, about("lines that activate a learned rule; one attempt with that many is enough", 1)
    ] = 10
    learn_recheck: Annotated[
        int, about("re-diagnose one failed attempt in this many, and each a new rule thinned; 0: none", 0)
    ] = 10

    # Language model
    llm_base_url: Annotated[str, about("URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1")] = ""
    llm_model: Annotated[str, about("name of the model")] = ""
    llm_key: Annotated[str, about("API key of the model", secret=True)] = ""
    llm_key_file: Annotated[Path | None, about("file that holds the API key")] = None
    llm_output: Annotated[
        Literal["auto", "json_schema", "json", "tools", "text"],
        about("how the model is asked for JSON; `auto`: the strictest way its server supports"),
    ] = "auto"
    llm_seconds: Annotated[float, about("give up a model call after this many seconds", 0.1, 3600)] = 60.0
    llm_calls_per_job: Annotated[int, about("most model calls per job", 0)] = 40
    llm_calls_per_hour: Annotated[int, about("most model calls per hour", 0)] = 400
    llm_tokens_per_hour: Annotated[int, about("most tokens per hour, prompts and answers", 0)] = 2_000_000
    llm_dollars_in: Annotated[float, about("price of a million prompt tokens, for the metrics", 0)] = 0.0
    llm_dollars_out: Annotated[float, about("price of a million answer tokens, for the metrics", 0)] = 0.0
    llm_tokens_per_job: Annotated[int, about("most tokens per job", 0)] = 200_000
    llm_tokens_per_day: Annotated[int, about("most tokens in 24 hours", 0)] = 20_000_000
    llm_tokens_in_all: Annotated[int, about("most tokens ever; 0: no limit", 0)] = 0
    llm_dollars_per_day: Annotated[float, about("most dollars in 24 hours; 0: no limit", 0)] = 0.0
    llm_dollars_in_all: Annotated[float, about("most dollars ever; 0: no limit", 0)] = 0.0

    # Masking
    mask: Annotated[
        Literal["on", "off"], about("mask passwords, keys, tokens and e-mail addresses in what a model is sent")
    ] = "on"
    mask_hosts: Annotated[bool, about("mask host names too")] = False
    mask_ips: Annotated[bool, about("mask IP addresses too")] = False

    # Failure agent
    cases: Annotated[Literal["on", "off"], about("look up failures that no rule knows among confirmed ones")] = "on"
    embedding_model: Annotated[
        str, about("sentence-transformers model, a name or a folder; default: the installed all-MiniLM-L6-v2")
    ] = ""
    chroma_url: Annotated[
        str, about("Chroma server for the vectors of past cases; default: embedded, in the data folder")
    ] = ""
    case_similarity: Annotated[float, about("cosine from which two failures count as similar", 0, 1)] = 0.8
    case_agreement: Annotated[int, about("similar past cases that must agree to decide", 1, 100)] = 2
    agent: Annotated[
        Literal["auto", "off"],
        about("ask the model when neither a rule nor a case knows a failure; `auto`: if one is set"),
    ] = "auto"
    agent_samples: Annotated[int, about("answers of the model that vote when the first is not certain", 1, 25)] = 3
    agent_confidence: Annotated[float, about("answers of the model below this confidence count as Unknown", 0, 1)] = 0.6
    agent_below: Annotated[
        float, about("also ask the model when a verdict by rules is less confident than this", 0, 1)
    ] = 0.7
    agent_new: Annotated[
        Literal["on", "off"],
        about("`on`: a model also reads each failure that no model and nobody has confirmed, though rules are sure"),
    ] = "off"
    agent_tool_calls: Annotated[int, about("looks into the log that the model may take for one answer", 0, 50)] = 6
    agent_tokens: Annotated[
        int,
        about("tokens of the first message to the model about a failure; each look adds 1,650 at most", 4000, 500_000),
    ] = 16_000
    confirm_attempts: Annotated[
        int, about("attempts in which the model must agree to confirm a failure; 0: only people confirm", 0, 1000)
    ] = 3

    # Node tests and actions
    launcher: Annotated[
        Literal["", LauncherName],
        about("how probes reach the nodes to test; empty: nothing is tested automatically"),
    ] = ""
    act_test: Annotated[
        Literal["auto", "ask", "never"],
        about("test a job's nodes after an infrastructure failure: `auto`, `ask` (a person) or `never`"),
    ] = "ask"
    act_cordon: Annotated[
        Literal["auto", "ask", "never"], about("cordon nodes that a test found faulty: `auto`, `ask` or `never`")
    ] = "ask"
    act_reboot: Annotated[
        Literal["ask", "never"], about("advise rebooting a faulty node: `ask` queues it for a person")
    ] = "ask"
    act_inspect: Annotated[
        Literal["ask", "never"], about("advise inspecting the hardware of a node that two reboots did not fix")
    ] = "ask"
    act_restart: Annotated[Literal["ask", "never"], about("advise restarting a job")] = "ask"

    # Cordons
    cordon_with: Annotated[
        Literal["dry-run", "slurm", "kubernetes", "file"],
        about("what cordons nodes; `dry-run` only reports what it would do"),
    ] = "dry-run"
    cordon_file: Annotated[Path | None, about("list of cordoned nodes that `file` maintains")] = None
    fleet: Annotated[
        str, about("all nodes, `gpu-[001-588]`, where no cluster lists them; default: every node ever tested")
    ] = ""
    cordon_owner: Annotated[
        str, about("name recorded on cordoned nodes; services that share a cluster need different ones")
    ] = "logdoctor"
    cordon_share: Annotated[
        float, about("largest share of the cluster's nodes that may be cordoned, whoever cordoned them", 0, 1)
    ] = 0.05
    cordon_at_once: Annotated[int, about("most nodes cordoned by logdoctor at a time", 0)] = 4
    cordon_per_hour: Annotated[int, about("most nodes cordoned by logdoctor per hour", 0)] = 2

    # Probes
    test_seconds: Annotated[float, about("give up a probe after this many seconds", 5, 3600)] = 60.0
    test_minutes: Annotated[float, about("start no further round of a test after this many minutes", 1, 1440)] = 30.0
    test_repeats: Annotated[int, about("all-gathers per world; intermittent faults need more", 1, 10_000)] = 1
    test_repeats_after_steps: Annotated[
        int, about("the same for the nodes of a job that had made steps", 1, 10_000)
    ] = 20
    test_regroup: Annotated[int, about("times all nodes are paired again while nothing has passed", 0, 100)] = 3
    test_slow_share: Annotated[
        float, about("share of the median bandwidth (or GPU speed) of its kind below which a world is slow", 0, 1)
    ] = 0.7
    test_slow_share_cpu: Annotated[float, about("the same for nodes without GPUs, where speeds vary more", 0, 1)] = 0.1
    test_floors: Annotated[
        str, about("bandwidth in GB/s below which a world is slow, by GPU type: `H100=300,A100=150`")
    ] = ""
    test_sizes: Annotated[str, about("bytes gathered, `1048576,268435456`; default: what fits the device")] = ""
    test_gpus: Annotated[int, about("GPUs per node to use; 0: all", 0, 64)] = 0
    test_port: Annotated[int, about("first of the 2,000 ports that worlds listen on", 1024, 63_000)] = 20_000
    test_python: Annotated[str, about("Python with torch on the nodes")] = "python3"
    test_env: Annotated[
        str, about("environment of the probe, `NCCL_SOCKET_IFNAME=ib0,NCCL_DEBUG=WARN`; public on the node")
    ] = ""
    test_topology: Annotated[
        Path | None, about("Slurm's topology.conf, when the launcher does not know the switch of each node")
    ] = None

    # Launchers
    local_nodes: Annotated[int, about("nodes of the launcher `local`: processes on this machine", 1, 1024)] = 4
    slurm_options: Annotated[str, about("extra srun options, such as `--partition=debug --account=ops`")] = ""
    ssh_hosts: Annotated[
        Path | None, about("file of nodes, one per line: `NAME [USER@]HOST[:PORT] [FABRIC ADDRESS] [GROUP]`")
    ] = None
    ssh_config: Annotated[Path | None, about("OpenSSH client configuration; default: ~/.ssh/config")] = None
    ssh_user: Annotated[str, about("user on the nodes")] = ""
    ssh_key: Annotated[Path | None, about("private key file")] = None
    ssh_known_hosts: Annotated[Path | None, about("host keys file; default: ~/.ssh/known_hosts")] = None
    kube_config: Annotated[
        Path | None, about("kubeconfig; default: the pod's service account, else ~/.kube/config")
    ] = None
    kube_context: Annotated[str, about("context in the kubeconfig")] = ""
    kube_namespace: Annotated[str, about("namespace for the Jobs of probes")] = "default"
    kube_image: Annotated[str, about("image of the probe, with Python and torch")] = ""
    kube_resources: Annotated[str, about("resource limits of its container, `nvidia.com/gpu=8,rdma/hca=1`")] = ""
    kube_pod: Annotated[
        str, about("further pod options, `shared_memory=16Gi,capability=IPC_LOCK,pull_secret=NAME`; see docs/nodes.md")
    ] = ""
    kube_selector: Annotated[str, about("label selector of the nodes to use when none are named")] = ""

    # Notifications
    public_url: Annotated[
        str, about("URL of the pages for links in messages, `https://logdoctor.example`; empty: no links")
    ] = ""
    notify_webhooks: Annotated[
        str,
        about("signed webhooks that receive incidents, `NAME=URL NAME=URL`; see docs/notifications.md", secret=True),
    ] = ""
    notify_webhook_secrets: Annotated[
        str, about("their signing secrets, `NAME=whsec_...`; list two for one NAME while rotating", secret=True)
    ] = ""
    notify_slack: Annotated[
        str, about("incoming webhooks of Slack or a compatible chat, `NAME=URL NAME=URL`", secret=True)
    ] = ""
    notify_slack_signing_secret: Annotated[
        str, about("signing secret of the Slack app: messages get buttons that acknowledge", secret=True)
    ] = ""
    notify_routes: Annotated[
        str, about("who is told of what, `NAME=job:llama-*,user:anna NAME=team:rl`; default: everybody of everything")
    ] = ""
    notify_settle_seconds: Annotated[
        float, about("announce an incident once its verdict is final, or provisional for this long", 0, 3600)
    ] = 20.0
    notify_per_minute: Annotated[int, about("messages per minute per target; more are merged into one", 1, 1000)] = 5
    notify_resolved: Annotated[Literal["on", "off"], about("also announce that an announced incident is resolved")] = (
        "on"
    )
    notify_quiet: Annotated[str, about("quiet hours, `22:00-07:00`; messages are held back and sent as one")] = ""
    notify_timezone: Annotated[str, about("time zone of the quiet hours, `Europe/Berlin`")] = "UTC"
    notify_quiet_except: Annotated[str, about("recoveries whose incidents are announced in quiet hours too")] = (
        "isolate_and_restart,ask_human"
    )
    notify_seconds: Annotated[float, about("give up a delivery after this many seconds, and retry later", 0.5, 60)] = (
        10.0
    )
    notify_proxy: Annotated[
        str,
        about("HTTP proxy for messages, `http://proxy:3128`; default: none, proxy variables are ignored", secret=True),
    ] = ""
    notify_retention_days: Annotated[
        float, about("delete delivered messages after this long, failed ones after four times that; 0: never", 0)
    ] = 90.0


SECTIONS = {
    "rules": "Diagnosis",
    "host": "Service",
    "sso_user_header": "Single sign-on",
    "url": "Asking a service, sending logs",
    "learn": "Learning filter rules",
    "llm_base_url": "Language model",
    "mask": "Masking",
    "cases": "Failure agent",
    "launcher": "Node tests and actions",
    "cordon_with": "Cordons",
    "test_seconds": "Probes",
    "local_nodes": "Launchers",
    "public_url": "Notifications",
}
"""Where each section of docs/settings.md begins, by its first setting."""


class InForce(msgspec.Struct, frozen=True):
    """A setting in force. `value` is None for a secret that is set, `source` says where it was set."""

    name: str
    value: str | None
    source: Literal["default", "environment", "env file"]
    default: str
    meaning: str


class Help(NamedTuple):
    """One row of docs/settings.md."""

    name: str
    default: str
    meaning: str


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process. `SettingsError` for an unknown LOGDOCTOR_* variable or a bad value."""
    settings, errors = lenient_settings(environment)
    if errors:
        raise errors[0]
    return settings


def lenient_settings(environment: Mapping[str, str] | None = None) -> tuple[Settings, list[SettingsError]]:
    """Return the settings that are valid, and the errors of all others."""
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    unknown, bad = [], []
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.endswith("_COMPLETE"):  # shell completion is click's own
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.__struct_fields__:
            unknown.append(_unknown(variable))
            continue
        if _is_unset(name, value):
            continue
        try:
            given[name] = _converted(name, value)
        except SettingsError as error:
            bad.append(error)
    return Settings(**given), unknown + bad


def _unknown(variable: str, place: str = "") -> SettingsError:
    """Return the error for a variable that is no setting; it names the setting that may have been meant."""
    names = [f"{PREFIX}{name.upper()}" for name in Settings.__struct_fields__]
    meant = "".join(f"Did you mean {near}? " for near in difflib.get_close_matches(variable, names, 1, 0.8))
    return SettingsError(f"{variable}{place}", "is not a setting", f"{meant}{_NEXT_STEP}")


def load_env_file(path: Path) -> None:
    """Set an env file's variables that the environment lacks, for this process and its children. `SettingsError` for a
    file that cannot be read, or sets a LOGDOCTOR_* variable that is no setting."""
    for variable, (value, line) in read_env_file(path).items():
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX).lower() not in Settings.__struct_fields__:
            raise _unknown(variable, f" ({path}, line {line})")
        if not os.environ.get(variable):
            os.environ[variable] = value
    os.environ[f"{PREFIX}ENV_FILE"] = str(path)


def in_force(settings: Settings, environment: Mapping[str, str] | None = None) -> Iterator[InForce]:
    """Yield every setting with its value and source, without secrets."""
    environment = os.environ if environment is None else environment
    of_file = read_env_file(settings.env_file) if settings.env_file else {}
    folders = {"rules": rules_folder, "cache_dir": cache_folder, "data_dir": data_folder}
    for name, help in zip(Settings.__struct_fields__, table(), strict=True):
        value = getattr(settings, name)
        text = _text(folders[name](settings) if name in folders else value)
        given = environment.get(help.name)
        from_file = help.name in of_file and given == of_file[help.name].value
        is_set = given is not None and not _is_unset(name, given)
        source: Literal["default", "environment", "env file"] = "default"
        if is_set:
            source = "env file" if from_file else "environment"
        hidden = text and (_meta(name).extra or {})["secret"]
        shown = None if hidden else _USER_OF_URL.sub("***", text)
        yield InForce(help.name, shown, source, help.default, help.meaning)


def _text(value: object) -> str:
    """Return a value as text for a variable; "" for None."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value))
    return "" if value is None else str(value)


def _is_unset(name: str, value: str) -> bool:
    """Return whether a value is an empty path, as from `NAME=` or `NAME=$OTHER`."""
    return not value and _hints(Settings)[name] == Path | None


def _converted(name: str, value: str) -> Any:
    """Convert a setting to its type and range; `SettingsError`. A switch is on or off, true or false."""
    kind = _hints(Settings, include_extras=True)[name]
    if _hints(Settings)[name] is bool and value.lower() in ("on", "off"):
        return value.lower() == "on"
    try:
        given = [part for part in value.split(os.pathsep) if part] if name == "more_rules" else value
        return msgspec.convert(given, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        shown = "a value" if (_meta(name).extra or {})["secret"] else f"the value {value!r}"
        choices = get_args(get_type_hints(Settings)[name]) if "enum" in str(error) else ()
        why = f"not one of {', '.join(filter(None, choices))}" if choices else str(error)
        cause = f"has {shown} that is not valid ({why})"
        raise SettingsError(f"{PREFIX}{name.upper()}", cause, _NEXT_STEP) from error


def _meta(name: str) -> Meta:
    """Return the annotation of a setting."""
    meta: Meta = _hints(Settings, include_extras=True)[name].__metadata__[0]
    return meta


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value).expanduser()
    raise NotImplementedError(f"no setting has the type {kind}")


def environment() -> dict[str, str]:
    """Return the environment for foreign programs, such as srun."""
    return dict(os.environ)


def rules_folder(settings: Settings) -> Path:
    """Return the folder with the rules: as set, the wheel's, or the source tree's."""
    if settings.rules:
        return settings.rules
    package = Path(__file__).resolve().parent
    bundled = package / "data" / "rules"
    return bundled if bundled.is_dir() else package.parent / "rules"


def prompts_folder(settings: Settings) -> Path:
    """Return the folder with the prompts: the wheel's, or the source tree's."""
    package = Path(__file__).resolve().parent
    bundled = package / "data" / "prompts"
    return bundled if bundled.is_dir() else package.parent / "prompts"


def llm_key(settings: Settings) -> str:
    """Return the key of the model, set directly or by its file; "" without one. `SettingsError` for a bad file."""
    if settings.llm_key or settings.llm_key_file is None:
        return settings.llm_key
    try:
        return settings.llm_key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        variable = f"{PREFIX}LLM_KEY_FILE"
        cause = f"its file cannot be read ({error})"
        raise SettingsError(variable, cause, "Check the path and its permissions.") from error


def cache_folder(settings: Settings) -> Path:
    """Return the folder for compiled rules; it may not exist yet."""
    if settings.cache_dir:
        return settings.cache_dir
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "logdoctor"


def data_folder(settings: Settings) -> Path:
    """Return the folder for logs and records; it may not exist yet."""
    if settings.data_dir:
        return settings.data_dir
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "logdoctor"


def table() -> list[Help]:
    """Return one row for each setting, for docs/settings.md and its test."""
    defaults = Settings()
    return [
        Help(
            f"{PREFIX}{name.upper()}",
            _text(getattr(defaults, name)),
            _meta(name).description or "",
        )
        for name in Settings.__struct_fields__
    ]
