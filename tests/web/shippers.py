"""Real log shippers, run as their users run them, set up to send to a port of this machine."""

import json
import logging
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

ROOT = Path(__file__).parents[2]
RSYSLOG = ROOT / "build" / "rsyslog"
INSTALL = (
    "syslog-ng is not installed. On Debian or Ubuntu: "
    "apt-get install -y --no-install-recommends syslog-ng-core syslog-ng-mod-http"
)

# A line is made a JSON string by $(format-json) with one key, of which $(substr) takes away `{"l":` and `}`.
# syslog-ng itself drops empty lines and a carriage return at the end, and sends a line once its newline is there.
_CONFIG = r"""@version: 3.35
options { keep-hostname(yes); stats-freq(0); time-reopen(1); };
source s_log {
  file("LOG" follow-freq(0.1) flags(no-parse) log-msg-size(1048576) log-fetch-limit(1000) log-iw-size(10000));
};
destination d_loki {
  http(
    url("http://127.0.0.1:PORT/loki/api/v1/push")
    method("POST")
    headers(HEADERS)
    body-prefix("{\"streams\":[{\"stream\":LABELS,\"values\":[")
    body("[\"${R_UNIXTIME}${R_USEC}000\",$(substr \"$(format-json --scope none l=\"$MESSAGE\")\" 5 -1)]")
    delimiter(",")
    body-suffix("]}]}")
    batch-lines(BATCH_LINES)
    batch-timeout(200)
    timeout(300)
    retries(1000)
    workers(1)
    log-fifo-size(100000)
  );
};
log { source(s_log); destination(d_loki); flags(flow-control); };
"""


@contextmanager
def syslog_ng(
    folder: Path, log: Path, port: int, labels: Mapping[str, str], token: str = "", batch_lines: int = 100
) -> Iterator["subprocess.Popen[bytes]"]:
    """syslog-ng, following the file `log` and pushing its lines as one Loki stream; stopped at the end."""
    headers = ["Content-Type: application/json"] + ([f"Authorization: Bearer {token}"] if token else [])
    config = (
        _CONFIG.replace("LOG", str(log))
        .replace("PORT", str(port))
        .replace("HEADERS", ", ".join(f'"{header}"' for header in headers))
        .replace("LABELS", _quoted(json.dumps(dict(labels))))
        .replace("BATCH_LINES", str(batch_lines))
    )
    with running_syslog_ng(folder, config) as process:
        yield process


@contextmanager
def running_syslog_ng(folder: Path, text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """syslog-ng with a configuration; stopped at the end.

    Its configuration, state and messages stay in `folder`, so that starting it there again goes on where it was.
    """
    program = shutil.which("syslog-ng", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.fail(INSTALL)
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "syslog-ng.conf"
    config.write_text(text)
    files = {"cfgfile": config, "persist-file": folder / "persist", "pidfile": folder / "pid", "control": folder / "c"}
    options = [f"--{name}={path}" for name, path in files.items()]
    with _running(folder, [program, "--foreground", "--stderr", "--no-caps", *options]) as process:
        yield process


@contextmanager
def running_rsyslog(folder: Path, text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """rsyslog with a configuration; stopped at the end. It is unpacked, not installed: it would replace syslog-ng."""
    libraries = next(iter((RSYSLOG / "usr" / "lib").glob("*-linux-gnu")), None)
    if libraries is None:
        pytest.fail("rsyslog is not there. On Debian or Ubuntu: make build/rsyslog/.ready")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "rsyslog.conf"
    config.write_text(f'global(workDirectory="{folder}")\n{text}')
    command = [RSYSLOG / "usr/sbin/rsyslogd", "-n", "-f", config, "-i", folder / "pid", "-M", libraries / "rsyslog"]
    with _running(
        folder, list(map(str, command)), LD_LIBRARY_PATH=str(libraries), LOGDOCTOR_SPOOL_DIR=str(folder / "spool")
    ) as process:
        yield process


@contextmanager
def _running(folder: Path, command: list[str], **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    with (folder / "messages").open("ab") as messages:
        process = subprocess.Popen(command, stdout=messages, stderr=messages, cwd=folder, env=environment | variables)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def recipe(language: str) -> str:
    """The configuration that docs/senders.md gives for a shipper."""
    _, _, rest = (ROOT / "docs" / "senders.md").read_text(encoding="utf-8").partition(f"```{language}\n")
    return rest.partition("```")[0]


def _quoted(text: str) -> str:
    """The text as it stands in the configuration in double quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


@contextmanager
def opentelemetry(
    port: int, attributes: Mapping[str, str | int], token: str = "", compressed: bool = False
) -> Iterator[logging.Logger]:
    """A logger whose records OpenTelemetry's SDK sends in batches; the rest is sent at the end."""
    exporter = OTLPLogExporter(
        endpoint=f"http://127.0.0.1:{port}/v1/logs",
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=300,
        compression=Compression.Gzip if compressed else Compression.NoCompression,
    )
    provider = LoggerProvider(resource=Resource.create(dict(attributes)), shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=200))
    logger = logging.Logger("trainer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its successor is a package of its own
        logger.addHandler(LoggingHandler(logger_provider=provider))
    try:
        yield logger
    finally:
        provider.shutdown()
