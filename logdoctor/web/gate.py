"""Access control: bearer tokens, browser sessions, rate limits, and protection from other sites' pages."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from logdoctor.errors import RequestRefused
from logdoctor.store.keeping.sessions import Sessions
from logdoctor.store.keeping.tokens import Token, Tokens, holds, may
from logdoctor.web.rates import Rates
from logdoctor.web.single_sign_on import SingleSignOn

_REMEMBERED = 5.0  # seconds for which a token is cached; a revoked one works that long
_KNOWN = 10_000  # cached callers
_SAFE = ("GET", "HEAD", "OPTIONS")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_WRONG_PER_MINUTE = 30
SESSION, CSRF, NAME = "session", "csrf", "name"
"""Keys of a browser's signed cookie: the id of its session, which stands for a token, the key of its forms, and the
name entered there, which counts where no tokens are required."""
MAX_NAME = 60
UNVERIFIED = "(unverified)"
"""Follows an unverified name."""
SIGNED_ON = "(single sign-on)"
"""Follows the name of a person: a token may have the same name."""


class Caller(NamedTuple):
    """The caller of a request. Without a token everything is allowed, because the service listens on loopback only;
    `given` is then the name entered in this browser, "" for none. `is_person` means that a proxy named the caller, not
    a token."""

    token: Token | None
    name: str
    given: str = ""
    is_person: bool = False

    @property
    def who(self) -> str:
        """Return the name for the records: the token's, the person's (marked), or a given one. Without tokens that is
        the given name, marked as unverified, or the address."""
        if self.is_person:
            return f"{self.name} {SIGNED_ON}"
        return f"{self.given} {UNVERIFIED}" if self.given else self.name or "somebody"

    def may(self, scope: str, job: str) -> bool:
        """Return whether the caller has this scope for a job."""
        return self.token is None or may(self.token, scope, job)

    def places(self, job: str) -> bool:
        """Return whether the caller may state where a job ran. Whoever may test and cordon any node may, too."""
        return self.may("place", job) or (not self.prefixes and self.may("operate", job))

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the job names that the caller may see; () means all."""
        return self.token.prefixes if self.token else ()

    def unbound(self, why: str) -> "Caller":
        """Return this caller; `RequestRefused` with the reason `why` when the token is bound to jobs."""
        if self.prefixes:
            cause = f"it is limited to some jobs, but {why}"
            raise RequestRefused(403, "forbidden", f"token {self.name!r}", cause, "Use a token without prefixes.")
        return self


class Gate:
    """Admits requests. `wants_token` is False only when the service listens on loopback."""

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions,
        wants_token: bool,
        rate: int,
        rates: Rates,
        sign_on: SingleSignOn | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens, self._sessions, self._sign_on, self._clock = tokens, sessions, sign_on, clock
        self.wants_token, self._rate, self._rates = wants_token, rate, rates
        self._found: OrderedDict[tuple[str, str], tuple[float, Token | None]] = OrderedDict()

    async def admit(self, request: Request, scope: str, by_form: bool = False) -> Caller:
        """Return the caller, if they have the scope for the job in the path. With `by_form`, as for `caller`, the
        request is for a page, and the caller must also have `read`."""
        caller = await self.caller(request, by_form)
        job = request.path_params.get("job")
        for wanted in {scope: None, "read": None} if by_form else (scope,):
            _require(caller, wanted, job)
        request.state.caller = caller  # for what every page shows
        return caller

    async def caller(self, request: Request, by_form: bool = False) -> Caller:
        """Return the caller. `RequestRefused` without a valid token, from another site's page, or above the rate
        limit."""
        self._check_origin(request)
        address = request.client.host if request.client else ""
        if not self.wants_token:
            self._check_host(request)
            await self._count(address, self._rate)
            return Caller(None, address, known_as(request))
        if person := self.person(request, by_form):
            await self._count(f"person {person.name}", self._rate)
            return Caller(person, person.name, is_person=True)
        secret, session = _shown(request, by_form)
        if not secret and not session:
            raise _unauthorized("it has no token")
        token = await (self.token(secret, address) if secret else self.of_session(session))
        if token is None:
            raise _unauthorized("its token is unknown, expired or revoked" if secret else "its session is over")
        await self._count(token.name, self._rate)
        return Caller(token, token.name)

    def person(self, request: Request, by_form: bool = False) -> Token | None:
        """Return the person whom a proxy names, where a session would count, too. A token takes precedence."""
        if self._sign_on is None or _bearer(request) or not (request.method in _SAFE or by_form):
            return None
        return self._sign_on.person(request)

    def known(self, request: Request) -> Caller | None:
        """Return the caller if known without a token look-up and without counting, or None."""
        address = request.client.host if request.client else ""
        if not self.wants_token:
            return Caller(None, address, known_as(request)) if _is_local(request) else None
        with suppress(RequestRefused):
            if person := self.person(request):
                return Caller(person, person.name, is_person=True)
        until, token = self._found.get(_shown(request, by_form=False), (0.0, None))
        return Caller(token, token.name) if token is not None and until > self._clock() else None

    async def token(self, secret: str, address: str) -> Token | None:
        """Return the token with this secret; `RequestRefused` when an address tries too many."""
        token = await self._remembered((secret, ""), self._tokens.find)
        if token is None:
            await self._count(f"wrong {address}", _WRONG_PER_MINUTE / 60, burst=_WRONG_PER_MINUTE)
        return token

    async def count_wrong(self, request: Request) -> None:
        """Count a request with invalid credentials; `RequestRefused` when an address sends too many."""
        address = request.client.host if request.client else ""
        await self._count(f"wrong {address}", _WRONG_PER_MINUTE / 60, burst=_WRONG_PER_MINUTE)

    async def of_session(self, session: str) -> Token | None:
        """Return the token of a browser's session; None when the session has ended."""
        return await self._remembered(("", session), self._sessions.token)

    async def sign_in(self, token: Token) -> str:
        """Start a session with a token, and return its id."""
        session = await run_in_threadpool(self._sessions.begin, token)
        self._remember(("", session), token)
        return session

    async def sign_out(self, session: str) -> None:
        """End a session."""
        await run_in_threadpool(self._sessions.end, session)
        self._found.pop(("", session), None)

    async def _remembered(self, shown: tuple[str, str], find: Callable[[str], Token | None]) -> Token | None:
        now = self._clock()
        found = self._found.get(shown)
        if found is not None and found[0] > now:
            return found[1]
        token = await run_in_threadpool(find, "".join(shown))
        if token is not None:
            self._remember(shown, token)
        return token

    def _remember(self, shown: tuple[str, str], token: Token) -> None:
        self._found[shown] = (self._clock() + _REMEMBERED, token)
        while len(self._found) > _KNOWN:
            self._found.popitem(last=False)

    async def _count(self, who: str, rate: float, burst: float | None = None) -> None:
        """Count a request of a caller, who may send two seconds' worth at once, or `burst`."""
        if rate and not await self._rates.take(who, rate, 2 * rate if burst is None else burst):
            cause = f"more than {rate:g} requests per second" if rate >= 1 else "too many wrong tokens"
            name = who.removeprefix("wrong ").removeprefix("person ")
            raise RequestRefused(429, "too_many", name, cause, "Wait, then send less often.")

    def _check_host(self, request: Request) -> None:
        """Refuse host names of others, without tokens. Another site may point its own name here."""
        if not _is_local(request):
            cause = "without tokens, the service answers only to localhost"
            raise RequestRefused(
                403, "wrong_host", "the Host header", cause, "Use localhost, or set LOGDOCTOR_AUTH=on."
            )

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site makes a browser send."""
        origin = request.headers.get("origin")
        if request.method in _SAFE or origin is None:
            return
        if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
            raise RequestRefused(
                403, "wrong_origin", "the Origin header", "it belongs to another site", "Use the pages of this service."
            )


def known_as(request: Request) -> str:
    """Return the name entered in this browser."""
    return str(request.session.get(NAME, ""))[:MAX_NAME]


def set_name(request: Request, name: str) -> str:
    """Store the name entered in this browser, "" for none, and return it. Characters that could imitate our markers are
    removed."""
    shown = "".join(char for char in name[: 4 * MAX_NAME] if char.isprintable() and char not in "()<>")
    name = " ".join(shown.split())[:MAX_NAME].strip()
    if name:
        request.session[NAME] = name
    else:
        request.session.pop(NAME, None)
    return name


def named(request: Request, caller: Caller, name: str) -> Caller:
    """Return the caller under the name entered in a form, which the browser keeps. A token takes precedence."""
    if caller.token is not None or not name.strip():
        return caller
    known = caller._replace(given=set_name(request, name))
    request.state.caller = known  # so that the next page does not ask for a name again
    return known


def form_key(request: Request) -> str:
    """Return the key that forms of this session must carry (see `check_form`)."""
    return str(request.session.setdefault(CSRF, secrets.token_urlsafe(24)))


def check_form(request: Request, given: str) -> None:
    """Raise `RequestRefused` when a form was not made by our pages for this session."""
    wanted = str(request.session.get(CSRF, ""))
    if not wanted or not secrets.compare_digest(wanted.encode(), given.encode()):
        raise RequestRefused(403, "bad_form", "the form", "it does not belong to this session", "Reload the page.")


def _shown(request: Request, by_form: bool) -> tuple[str, str]:
    """Return a request's bearer token, or the browser's session. The session counts if the request changes nothing or
    is a form; the other is ""."""
    if secret := _bearer(request):
        return secret, ""
    if request.method in _SAFE or by_form:
        return "", str(request.session.get(SESSION, ""))
    return "", ""


def _bearer(request: Request) -> str:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def _require(caller: Caller, scope: str, job: str | None) -> None:
    """Raise `RequestRefused` for a token without a scope, for this job if there is one."""
    token = caller.token
    if token is None or (holds(token, scope) if job is None else may(token, scope, job)):
        return
    what = f"{scope!r} for job {job!r}" if job is not None else repr(scope)
    if caller.is_person:
        next_step = "Ask for a group that may: LOGDOCTOR_SSO_GROUPS has them."
        raise RequestRefused(403, "forbidden", token.name, f"their groups do not allow {what}", next_step)
    raise RequestRefused(403, "forbidden", f"token {token.name!r}", f"it does not allow {what}", "Use another token.")


def _is_local(request: Request) -> bool:
    """Return whether the Host header is a loopback name."""
    return (_host(f"//{request.headers.get('host', '')}") or "") in _LOCAL


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _unauthorized(cause: str) -> RequestRefused:
    return RequestRefused(401, "unauthorized", "the request", cause, "Send 'Authorization: Bearer TOKEN'.")
