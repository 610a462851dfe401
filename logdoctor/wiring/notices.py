"""Build the notifier of incidents: targets, terms and the outbox."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from logdoctor.errors import SettingsError
from logdoctor.service.delivering import NotifyTerms
from logdoctor.service.leading import alone
from logdoctor.service.notify.quiet import Quiet, read_quiet, read_zone
from logdoctor.service.notify.routing import Route, read_routes
from logdoctor.service.notify.sending import Target, Way
from logdoctor.service.notify.signing import key
from logdoctor.service.notifying import Notifier
from logdoctor.settings import PREFIX, Settings
from logdoctor.store.incidents.notices import Notices
from logdoctor.store.jobs.records import Records
from logdoctor.taxonomy import RECOVERIES
from logdoctor.wiring.stored import records

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_MOST_TARGETS = 20
_LONGEST_URL = 2000
_LONGEST_PUBLIC = 200


def notifier(settings: Settings, kept: Records | None = None, leads: Callable[[], bool] = alone) -> Notifier:
    """Return the notifier over the data folder's records; not yet started. `SettingsError` names an invalid setting,
    and shows no secret."""

    proxy = _checked_url("NOTIFY_PROXY", "the proxy", settings.notify_proxy) if settings.notify_proxy else ""
    way = Way(settings.notify_seconds, proxy)
    notices = Notices((kept or records(settings)).database)
    return Notifier(targets(settings), notices, terms(settings), way, leads=leads)


def terms(settings: Settings) -> NotifyTerms:
    """Return the terms of sending: pauses, limits and quiet hours."""

    return NotifyTerms(
        settings.notify_settle_seconds,
        settings.notify_per_minute,
        _quiet(settings),
        _exceptions(settings),
        settings.notify_resolved == "on",
        public_url=_public_url(settings),
        routes=_routes(settings),
        slack_secret=settings.notify_slack_signing_secret.strip(),
    )


def targets(settings: Settings) -> list[Target]:
    """Return the targets of notifications."""

    secrets: dict[str, tuple[str, ...]] = {}
    for name, secret in _named("NOTIFY_WEBHOOK_SECRETS", settings.notify_webhook_secrets):
        try:
            key(secret)
        except ValueError as error:
            next_step = "Create one with `logdoctor notify secret`."
            raise SettingsError(f"{PREFIX}NOTIFY_WEBHOOK_SECRETS", f"that of {name}: {error}", next_step) from None
        secrets[name] = (*secrets.get(name, ()), secret)
    found: list[Target] = []
    for name, url in _named("NOTIFY_WEBHOOKS", settings.notify_webhooks):
        if name not in secrets:
            variable = f"{PREFIX}NOTIFY_WEBHOOK_SECRETS"
            next_step = "Create one with `logdoctor notify secret`."
            raise SettingsError(variable, f"has no secret for the webhook {name}", next_step)
        found.append(Target(name, "webhook", _checked_url("NOTIFY_WEBHOOKS", name, url), secrets[name]))
    for name, url in _named("NOTIFY_SLACK", settings.notify_slack):
        answers = bool(settings.notify_slack_signing_secret.strip())
        found.append(Target(name, "slack", _checked_url("NOTIFY_SLACK", name, url), answers=answers))
    names = [one.name for one in found]
    if (twice := [name for name in names if names.count(name) > 1]) or len(found) > _MOST_TARGETS:
        cause = f"the name {twice[0]} is used for two targets" if twice else f"there are more than {_MOST_TARGETS}"
        raise SettingsError(f"{PREFIX}NOTIFY_WEBHOOKS and {PREFIX}NOTIFY_SLACK", cause, "Give each a name of its own.")
    return found


def _named(variable: str, text: str) -> list[tuple[str, str]]:
    """Return the pairs of `NAME=VALUE NAME=VALUE`."""
    pairs = [part.partition("=") for part in text.split()]
    for at, (name, sign, value) in enumerate(pairs, 1):
        if not sign or not value or not _NAME.fullmatch(name):
            next_step = "See docs/notifications.md."
            raise SettingsError(f"{PREFIX}{variable}", f"part {at} is not in the form NAME=VALUE", next_step)
    return [(name, value) for name, _, value in pairs]


def _checked_url(variable: str, name: str, url: str) -> str:
    """Return the URL, checked to be HTTP or HTTPS."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or len(url) > _LONGEST_URL:
        raise SettingsError(f"{PREFIX}{variable}", f"the URL of {name} is not an HTTP URL", "Use https://HOST/PATH.")
    return url


def _public_url(settings: Settings) -> str:
    url = settings.public_url.rstrip("/")
    if not url:
        return ""
    parts = urlsplit(_checked_url("PUBLIC_URL", "the pages", url))
    if parts.query or parts.fragment or "@" in parts.netloc or len(url) > _LONGEST_PUBLIC:
        cause = "has more than a scheme, a host and a path, or more than 200 characters"
        raise SettingsError(f"{PREFIX}PUBLIC_URL", cause, "Use https://HOST.")
    return url


def _routes(settings: Settings) -> tuple[Route, ...]:
    """Return the routes, each to an existing target."""
    try:
        routes = read_routes(settings.notify_routes)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}NOTIFY_ROUTES", str(error), "See docs/notifications.md.") from None
    known = [one.name for one in targets(settings)]
    if missing := next((one.target for one in routes if one.target not in known), None):
        next_step = f"Known are: {', '.join(known) or 'none'}."
        raise SettingsError(f"{PREFIX}NOTIFY_ROUTES", f"{missing[:40]!a} is no target", next_step)
    return tuple(routes)


def _quiet(settings: Settings) -> Quiet | None:

    try:
        read_zone(settings.notify_timezone)
    except ValueError as error:
        next_step = "Use a name such as Europe/Berlin; install tzdata if the name is right."
        raise SettingsError(f"{PREFIX}NOTIFY_TIMEZONE", str(error), next_step) from None
    if not settings.notify_quiet.strip():
        return None
    try:
        return read_quiet(settings.notify_quiet, settings.notify_timezone)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}NOTIFY_QUIET", str(error), "Write it like 22:00-07:00.") from None


def _exceptions(settings: Settings) -> frozenset[str]:
    found = frozenset(part.strip() for part in settings.notify_quiet_except.split(",") if part.strip())
    if unknown := sorted(found - set(RECOVERIES)):
        cause = f"{unknown[0][:40]!a} is not a recovery"
        raise SettingsError(f"{PREFIX}NOTIFY_QUIET_EXCEPT", cause, f"Known are: {', '.join(RECOVERIES)}.")
    return found
