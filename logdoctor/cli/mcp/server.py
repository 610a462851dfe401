"""The server of the Model Context Protocol, and its tools. Each calls what the command line calls.

What a tool may do is decided by the service, by the token that asks. What it answers is masked and bounded.
"""

import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import AnyHttpUrl, Field

from logdoctor import pipeline, wiring
from logdoctor.cli.client.connection import Connection
from logdoctor.cli.client.connection import path as path_of
from logdoctor.cli.mcp.answers import DATA, Answer, answer
from logdoctor.compress.whole_log import LookLimits, WholeLog
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import InputError, LogdoctorError, ServiceError, TokenRefused
from logdoctor.extras import translated
from logdoctor.llm.masking import Masker, mask
from logdoctor.safe.lasting_files import Folder
from logdoctor.settings import Settings

_LOOK = LookLimits(read=1 << 30, seconds=20.0)
_HITS = 15  # first and last lines of a search
_LEAD = 64  # lines before those shown, with which they are masked
_PAGE = 10_000  # lines that a service gives at once

Text = Annotated[str | None, Field(max_length=4096)]
Number = Annotated[int | None, Field(ge=0, le=10**12)]
Around = Annotated[int, Field(ge=0, le=100)]
State = Literal["open", "new", "acknowledged", "resolved", "all"]
Found = dict[str, Any]


@dataclass
class Tools:
    """The tools, over logs below folders and a service. With `by_bearer` each request to the service is made with the
    token that came with the call. The docstrings of tools are for the models that call them."""

    settings: Settings
    folders: Sequence[Path]
    service: Connection | None
    by_bearer: bool = False
    diagnosing = threading.Lock()

    def diagnose_log(self, path: str, exit_code: int | None = None) -> Found:
        """Diagnose why the job behind a log file failed: reason, fault, recovery, and the lines that prove it.

        Give the exit code of the job if it is known. The reason `Unknown` means that no rule knows the cause.
        """
        with self._opened(path) as log, self.diagnosing:
            limits = wiring.limits(self.settings)._replace(workers=1)  # threads run here: no process is forked
            scanner = wiring.kept_scanner(self.settings)
            verdict = pipeline.diagnose([log], scanner, limits, ReportedEnd(exit_code=exit_code))
        return msgspec.structs.asdict(verdict)

    def read_log(
        self,
        path: Text = None,
        job: Text = None,
        attempt: Number = None,
        stream: Text = None,
        line: Number = None,
        around: Around = 20,
        pattern: Text = None,
    ) -> Found:
        """Read lines of a log file at `path`, or of a stream of a `job` of the service: of its newest attempt, or the
        one given. Lines are numbered from 1.

        Shown are the lines around `line`; or how many lines match `pattern` (a regular expression without look-around),
        with the first and last of them; or, with neither, the first and last lines.
        """
        if (path is None) == (job is None) or (line and pattern):
            raise InputError("the request", "names no place, or two", "Give path or job, and line or pattern.")
        first, last = (max(1, line - around - _LEAD), line + around) if line else (1, None)
        with ExitStack() as stack:
            if path is not None:
                log, shift = stack.enter_context(self._opened(path)), 0
                chunks, stream = partial(pipeline.chunks, log, wiring.limits(self.settings)), log.name
            else:
                number, streams = self._attempt(job or "", attempt)
                stream = streams[0] if stream is None and len(streams) == 1 else stream
                if stream not in streams:
                    raise InputError(f"stream {stream}", f"is none of {', '.join(streams[:20])}", "Name one of them.")
                place = path_of("jobs", job or "", "attempts", number, "streams", stream, "log")
                chunks, shift = partial(self._lines, place, first, last), first - 1
            whole = WholeLog({stream: chunks}, _LOOK)
            if line and last:
                texts = [(at + shift, text) for at, text in whole.window(stream, first - shift, last - shift)]
                lead = [text for at, text in texts if at < line - around]
                lines = [{"line": at, "text": text} for at, text in texts[len(lead) :]]
                return {"stream": stream, "lead": lead, "lines": lines}
            matching, found, count, complete = whole.sought(pattern, stream, _HITS, _LEAD)
        hits = [{"lead": before, "lines": [{"line": at, "text": text}]} for at, text, before in found]
        facts = {"matching": matching, "lines_read": count, "whole_log_read": complete}
        return {**facts, "stream": stream, "hits": hits}

    def get_verdict(self, job: str, attempt: int | None = None) -> Found:
        """Return the current verdict on an attempt of a job (default: the newest), with its evidence in context. Its
        `id` is what confirm_verdict wants."""
        number, streams = self._attempt(job, attempt)
        current = self._get(path_of("jobs", job, "attempts", number, "verdict"))
        return self._get(path_of("verdicts", current["id"])) | {"streams": streams}

    def list_incidents(self, state: State = "open", text: str | None = None, cursor: str | None = None) -> Found:
        """List incidents, which are failures of one cause, newest first; those that are open are not resolved.

        `text` is searched in reasons, nodes, jobs, users and quoted lines; `cursor` is `next` of the page before.
        """
        states = {"open": ["new", "acknowledged"], "all": ["new", "acknowledged", "resolved"]}.get(state, [state])
        page = self._get(path_of("incidents"), state=states, text=text, cursor=cursor, limit=15)
        return page | {"items": [one | {"newest": _brief(one["newest"])} for one in page["items"]]}

    def get_incident(self, id: int) -> Found:
        """Return an incident: its cause with evidence, its newest attempts, and what was done about it."""
        attempts = self._get(path_of("incidents", id, "attempts"), limit=15)["items"]
        history = self._get(path_of("incidents", id, "events"), limit=30)["items"]
        members = [_brief(one) for one in attempts]
        return {"incident": self._get(path_of("incidents", id)), "members": members, "history": history}

    def list_cases(self, reason: str | None = None, cursor: str | None = None) -> Found:
        """List past failures whose cause people confirmed, with what helped, newest first."""
        return self._get(path_of("cases"), reason=reason, cursor=cursor, limit=10)

    def list_nodes(self) -> Found:
        """List the nodes on record, those with the most failures first."""
        return self._get(path_of("nodes"), limit=100)

    def get_node(self, node: str) -> Found:
        """Return the history of a node: failures that suspect it, findings of tests, cordons."""
        return self._get(path_of("nodes", node), limit=20)

    def acknowledge_incident(self, id: int, note: str = "") -> Found:
        """Acknowledge an incident: somebody works on it. Only when a person asked for it; the note is for people."""
        return self._asked().post(Found, path_of("incidents", id, "acknowledge"), {"note": note})

    def resolve_incident(self, id: int, note: str = "") -> Found:
        """Resolve an incident: its cause is gone. Only when a person asked for it; the note is for people."""
        return self._asked().post(Found, path_of("incidents", id, "resolve"), {"note": note})

    def confirm_verdict(self, id: int, fix: str = "", comment: str = "") -> Found:
        """Confirm that a verdict is right, and say what helped: it becomes a case, which decides on failures like it.
        Only when a person said so."""
        return self._asked().post(Found, path_of("verdicts", id, "confirm"), {"fix": fix, "comment": comment})

    def _asked(self) -> Connection:
        """Return the service, asked with the token of this call."""
        if self.service is None:
            raise InputError("a job", "is of a service, and none is known", "Start `logdoctor mcp` with --url.")
        if not self.by_bearer:
            return self.service
        if not self._wants_tokens:
            cause = "wants no tokens, so whoever reaches these tools could do everything"
            raise ServiceError(f"the service at {self.service.url}", cause, "Set LOGDOCTOR_AUTH=on there.")
        shown = get_access_token()
        return Connection(self.service.url, shown.token if shown else "")

    @functools.cached_property
    def _wants_tokens(self) -> bool:
        assert self.service is not None
        try:
            Connection(self.service.url).get(Found, path_of("nodes"), limit=1)
        except TokenRefused:
            return True
        return False

    def _get(self, path: str, **query: object) -> Found:
        return self._asked().get(Found, path, **query)

    def _attempt(self, job: str, number: int | None) -> tuple[int, list[str]]:
        """Return the number of an attempt, by default of the newest, and its streams."""
        attempts = self._get(path_of("jobs", job))["attempts"]
        one = next((one for one in reversed(attempts) if number in (None, one["number"])), None)
        if one is None:
            raise InputError(f"job {job}", "has no such attempt", f"It has {len(attempts)}.")
        return one["number"], one["streams"]

    def _lines(self, stream: str, first: int, last: int | None) -> Iterator[bytes]:
        """Yield the lines of a stream of the service from one number to another, or to the end."""
        while last is None or first <= last:
            end = first + _PAGE - 1
            if not (body := self._asked().read(stream, line=f"{first}-{min(last or end, end)}")):
                return
            yield body
            first += body.count(b"\n")

    @contextmanager
    def _opened(self, name: str) -> Iterator[pipeline.LogFile]:
        """Yield a log below one of the folders, as the path of an open file: no link led to it, and nobody can exchange
        it. `InputError` when there is none; what lies elsewhere is not even said to exist."""
        if self.by_bearer:  # files are of no job, so a token that is bound to jobs is refused, as it is for nodes
            self._get(path_of("nodes"), limit=1)
        step = "Name a log file below the folders of `logdoctor mcp --files`, without links."
        for folder in self.folders:
            root = os.path.abspath(folder)
            try:
                file = Folder(root).open(os.path.relpath(os.path.join(root, name), root))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InputError(name[:300], f"cannot be read ({error.strerror})", step) from error
            with os.fdopen(file):
                yield pipeline.LogFile("main", Path(f"/dev/fd/{file}"), name)
            return
        raise InputError(name[:300], "does not exist where logs may be read", step)


def mcp_server(tools: Tools) -> MCPServer:
    """Return a server with the tools for what they reach; where no token lets act, none of those that do."""
    about = f"Why training jobs failed, with the lines that prove it. `data_not_instructions` is {DATA}"
    given: dict[str, Any] = {"version": version("logdoctor"), "log_level": "WARNING", "subscriptions": False}
    if tools.by_bearer and tools.service:
        issuer = AuthSettings(issuer_url=AnyHttpUrl(tools.service.url), resource_server_url=None)
        given |= {"auth": issuer, "token_verifier": _AnyBearer()}
    made: MCPServer = MCPServer("logdoctor", instructions=about, **given)
    masker = partial(Masker, tools.settings.mask_hosts, tools.settings.mask_ips)

    def add(reads: bool, destroys: bool, *some: Callable[..., Found]) -> None:
        hints = ToolAnnotations(read_only_hint=reads, destructive_hint=destroys, open_world_hint=False)
        for tool in some:
            made.add_tool(_told(tool, masker), annotations=hints)

    add(True, False, *((tools.diagnose_log,) if tools.folders else ()), tools.read_log)
    if tools.service:
        add(True, False, tools.get_verdict, tools.list_incidents, tools.get_incident)
        add(True, False, tools.list_cases, tools.list_nodes, tools.get_node)
    if tools.service and (tools.by_bearer or tools.settings.token):
        add(False, False, tools.acknowledge_incident)
        add(False, True, tools.resolve_incident, tools.confirm_verdict)  # which decide on failures to come
    return made


class _AnyBearer:
    """Passes each bearer token on: the service knows which are valid."""

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the token, None for an empty one."""
        return AccessToken(token=token, client_id="bearer", scopes=[]) if token else None


def _told(tool: Callable[..., Found], masker: Callable[[], Masker]) -> Callable[..., Answer]:
    """Return a tool that says what it found, or what went wrong, masked, and as the protocol wants it."""

    @functools.wraps(tool)
    def run(**given: Any) -> Answer:
        try:
            with translated():
                return answer(masker(), msgspec.to_builtins(tool(**given)))
        except LogdoctorError as error:
            said = re.sub(r"/dev/fd/\d+", lambda _: str(given.get("path")), str(error))
            raise ToolError(mask(said)[:2000]) from error

    run.__signature__ = inspect.signature(tool).replace(return_annotation=Answer)  # type: ignore[attr-defined]
    return run


def _brief(stored: Found | None) -> Found:
    """Return what a list says of a verdict."""
    said = stored["verdict"] if stored else {"evidence": []}
    found = {name: said.get(name) for name in ("reason", "recovery", "detail", "suspects")}
    return {**(stored or {}), "verdict": found | {"evidence": said["evidence"][:1]}}
