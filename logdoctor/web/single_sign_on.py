"""Single sign-on: a trusted proxy in front of the service names people in a header."""

import ipaddress
import time
from typing import NamedTuple

import structlog
from fastapi import Request

from logdoctor.errors import RequestRefused, SettingsError
from logdoctor.settings import Settings
from logdoctor.store.keeping.tokens import SCOPES, Token

log = structlog.get_logger()

_MAX_NAME = 200
_MAX_GROUPS = 10_000  # characters
_SEPARATOR = ","  # of groups; a separator inside a name is not recognized
_NEXT_STEP = "See docs/deploy.md, Single sign-on."

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class SingleSignOn(NamedTuple):
    """The trusted proxies with their header, and the scopes of all people and of groups."""

    header: str
    proxies: tuple[Network, ...]
    scopes: frozenset[str]
    groups_header: str
    groups: dict[str, frozenset[str]]

    def person(self, request: Request) -> Token | None:
        """Return the person whom a proxy names, as a token without a secret, or None. `RequestRefused` for an invalid
        name, and for more groups than are read: a part of them would grant other rights."""
        if not self._is_believed(request.client.host if request.client else ""):
            return None
        name = _only(request, self.header)
        if not name:
            return None
        if len(name) > _MAX_NAME or not name.isprintable():
            raise _refused(self.header, "is no name")
        groups = _only(request, self.groups_header) if self.groups_header else ""
        if len(groups) > _MAX_GROUPS:
            log.warning("too many groups", person=name, characters=len(groups), most=_MAX_GROUPS)
            cause = f"names groups in {len(groups):,} characters, {_MAX_GROUPS:,} are read"
            step = "Let the proxy send the groups that LOGDOCTOR_SSO_GROUPS names, and no others."
            raise _refused(self.groups_header, cause, step)
        names = map(str.strip, groups.split(_SEPARATOR))
        scopes = self.scopes.union(*(self.groups.get(name, frozenset()) for name in names))
        return Token(name, tuple(scope for scope in SCOPES if scope in scopes), (), time.time())

    def _is_believed(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        plain = getattr(found, "ipv4_mapped", None) or found
        return any(plain in network for network in self.proxies)


def single_sign_on(settings: Settings) -> SingleSignOn | None:
    """Return the configured single sign-on, None without it. `SettingsError` names what is wrong."""
    header = settings.sso_user_header.strip().lower()
    if not header:
        return None
    proxies = tuple(_network(text) for text in settings.sso_proxies.replace(",", " ").split())
    if not proxies:
        cause = "no proxy is believed, so that nobody could sign in"
        raise SettingsError("LOGDOCTOR_SSO_PROXIES", cause, f"Name the addresses of the proxies. {_NEXT_STEP}")
    groups: dict[str, frozenset[str]] = {}
    for part in settings.sso_groups.split():
        group, equals, scopes = part.rpartition("=")
        if not equals or not group:
            cause = f"{part[:60]!r} is not GROUP=SCOPE,SCOPE"
            raise SettingsError("LOGDOCTOR_SSO_GROUPS", cause, _NEXT_STEP)
        if _SEPARATOR in group:
            cause = f"{group[:60]!r} holds a comma, at which the header is parted"
            raise SettingsError("LOGDOCTOR_SSO_GROUPS", cause, f"Name groups without one. {_NEXT_STEP}")
        groups[group] = groups.get(group, frozenset()) | _scopes("LOGDOCTOR_SSO_GROUPS", scopes)
    if groups and not settings.sso_groups_header:
        cause = "no header says the groups of a person"
        raise SettingsError("LOGDOCTOR_SSO_GROUPS", cause, "Set LOGDOCTOR_SSO_GROUPS_HEADER.")
    everybody = _scopes("LOGDOCTOR_SSO_SCOPES", settings.sso_scopes)
    return SingleSignOn(header, proxies, everybody, settings.sso_groups_header.strip().lower(), groups)


def _only(request: Request, name: str) -> str:
    """Return the value of a header, "" without one. `RequestRefused` when it comes twice: then a proxy added its own to
    one that somebody had sent."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise _refused(name, "comes more than once")
    try:  # headers are Latin-1 to the framework, and UTF-8 to proxies
        return values[0].encode("latin-1").decode().strip() if values else ""
    except UnicodeError as error:
        raise _refused(name, "is not UTF-8") from error


def _refused(name: str, cause: str, next_step: str = "The proxy must set it anew for each request.") -> RequestRefused:
    return RequestRefused(400, "bad_identity", f"the header {name}", cause, next_step)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        cause = f"{text[:60]!r} is no address and no network ({error})"
        raise SettingsError("LOGDOCTOR_SSO_PROXIES", cause, "Write 10.0.4.7 or 10.1.0.0/28.") from error


def _scopes(variable: str, text: str) -> frozenset[str]:
    found = frozenset(scope.strip() for scope in text.split(",") if scope.strip())
    if unknown := sorted(found - set(SCOPES)):
        raise SettingsError(variable, f"{unknown[0][:60]!r} is no scope", f"Scopes are {', '.join(SCOPES)}.")
    return found
