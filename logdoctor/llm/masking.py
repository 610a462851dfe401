"""Secrets in log text, hidden before it goes to a model or into the examples of a rule.

`mask` hides them for good. A `Masker` hides more, tells different secrets apart, and can put them back.

Two signs give a secret away: its own form (keys of providers, JSON web tokens, PEM blocks), and the name before it
(`password=`, `"api_key": `, `Authorization: `). Words of language models are not secrets (`tokens=4096`,
`pad_token`), nor are hashes, ids and paths. When in doubt about a name, its value is hidden.
"""

import re
import threading
from collections.abc import Callable, Collection
from functools import partial
from ipaddress import IPv6Address

from logdoctor.llm.hosts import LIST, called, is_full, is_list, known

SECRET = "<secret>"
"""What stands in place of a secret."""

_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?!<secret>)(.*?)(-----END [A-Z0-9 ]{0,40}-----|\Z)", re.S
)

_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])"  # AWS
    r"|hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[A-Za-z_-]{0,80}\d)[A-Za-z0-9_-]{20,}"  # OpenAI and those who took its form
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"  # Google
    r"|wandb_v\d_[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|ldr_[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{20,}|glsa_[A-Za-z0-9_]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"  # JSON web token
    r")"
)
_SLACK_HOOK = re.compile(r"(hooks\.slack\.com/(?:services|workflows)/)[A-Za-z0-9/_-]+")
_WANDB = re.compile(r"(wandb([^\n]{0,100}?)(?<![0-9a-z]))[0-9a-f]{40}(?![0-9a-z])", re.I)
_COMMIT = re.compile(r"commit|sha|revision", re.I)
_USER_INFO = re.compile(r"""(?<=://)([^\s/?#"'@:<>]{0,256})(:(?!<secret>@)[^\s/"']{1,512})?@""")
_SIGNATURE = re.compile(
    r"""([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)(?!<secret>)[^\s&"']+""", re.I
)
_HEADER = re.compile(
    r"""(?<![A-Za-z])((?:proxy-)?authorization|(?:set-)?cookie)(\\{0,3}["']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}["']?)"""
    r"""(?![\s"'])(?!<secret>(?:[\\"'\n]|\Z))([^"'\n\\]+)""",
    re.I,
)
_BEARER = re.compile(r"\b(bearer[ \t]{1,4})(?=[A-Za-z._~+/=-]{0,80}\d)[A-Za-z0-9._~+/=-]{8,}", re.I)
_LOGIN = re.compile(r"(\blogin[ \t]{1,4}[^\s]{1,80}[ \t]{1,4}password[ \t]{1,4})(?!<secret>)[^\s]+", re.I)

_STRONG = (
    r"password|passwd|passphrase|pwd|secret|(?:api|access|secret|private|account|encryption|signing|auth|master"
    r"|subscription)[_-]?key|(?:auth|access|api|hf|hub|huggingface|refresh|session|security|bearer|github|gitlab|wandb"
    r"|slack|bot|private|job|ngc|secret)[_-]?token|(?:db|sql|user|root|admin|smtp|redis|postgres|mongo|proxy)_pass"
)
_SURE = re.compile(rf"(?:{_STRONG})\Z")
_OF_A_MODEL = re.compile(
    r"(?:pad|bos|eos|unk|mask|sep|cls|special|image|video|audio|start|end|stop|next|last|first|prev)[_-]token\Z"
)
_QUOTED = r"""\\+"[^"\n]*"|\\+'[^'\n]*'|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
_BARE = r"""[^\s"'&,;\\](?:[^\s"'&,;]|[&,;](?!\s|\Z|[\w.-]{1,40}[=:]))*"""
_NAMED = re.compile(
    rf"(?P<name>{_STRONG}|(?<![A-Za-z0-9])(?:[A-Za-z0-9]{{1,24}}[_-]){{0,3}}token)"
    r"(?P<sign>\\{0,3}[\"']?\]?[ \t]{0,4}(?:=>|:=|[:=])[ \t]{0,4})"
    rf"(?P<value>{_QUOTED}|{_BARE})",
    re.I,
)
_OPTION = re.compile(rf"(--(?:[a-z0-9]{{1,24}}[_-]){{0,3}}(?:{_STRONG}|token)[ \t]{{1,4}})(?!-|<secret>)([^\s]+)", re.I)
_NOTHING = re.compile(r"(?:none|null|nil|true|false|\*+|<secret>|\.\.\.)\Z", re.I)
_PATH = re.compile(r"[/~.]|[A-Za-z]:\\")


Hide = Callable[[str], str]
"""What stands in place of a value."""


def mask(text: str) -> str:
    """The text with `<secret>` in place of each password, key, token and cookie; the rest of it as it was.

    Time is linear in the text, and what was masked once stays as it is.
    """
    return hide_secrets(text, lambda _: SECRET)


def hide_secrets(text: str, hide: Hide) -> str:
    """The text with what `hide` makes of each password, key, token and cookie in its place."""
    text = _PEM.sub(lambda match: f"{match[1]}{hide(match[2])}{match[3]}", text)
    text = _HEADER.sub(lambda match: f"{match[1]}{match[2]}{hide(match[3])}", text)
    text = _USER_INFO.sub(partial(_without_password, hide), text)
    text = _SIGNATURE.sub(partial(_behind, hide), text)
    text = _FORMS.sub(lambda match: hide(match[0]), text)
    text = _SLACK_HOOK.sub(partial(_behind, hide), text)
    text = _WANDB.sub(partial(_without_key, hide), text)
    text = _BEARER.sub(partial(_behind, hide), text)
    text = _LOGIN.sub(partial(_behind, hide), text)
    text = _OPTION.sub(partial(_behind, hide), text)
    return _NAMED.sub(partial(_without_value, hide), text)


def _behind(hide: Hide, match: re.Match[str]) -> str:
    """The match with what stands behind its first group hidden."""
    return f"{match[1]}{hide(match[0][len(match[1]) :])}"


def _without_key(hide: Hide, match: re.Match[str]) -> str:
    """The key of Weights & Biases has the form of a commit, which is none when it is called one."""
    return match[0] if _COMMIT.search(match[2]) else _behind(hide, match)


def _without_password(hide: Hide, match: re.Match[str]) -> str:
    """The part of a URL before its host: the user may stay, unless the user is a key."""
    user, password = match.groups()
    if password:
        return f"{user}:{hide(password[1:])}@"
    return f"{hide(user)}@" if len(user) >= 20 else match[0]


def _without_value(hide: Hide, match: re.Match[str]) -> str:
    name, sign, value = match.group("name", "sign", "value")
    quote = value[: len(value) - len(value.lstrip("\\"))] + value.lstrip("\\")[0]
    quote = quote if quote[-1] in "\"'" else ""
    ends = (quote, quote[-1:]) if quote else ()  # what was opened as \" may be closed by "
    end = next((end for end in ends if value.endswith(end) and len(value) >= len(quote) + len(end)), "")
    bare = value[len(quote) : len(value) - len(end)]
    if not bare or _NOTHING.match(bare) or not _is_secret(name.lower(), bare):
        return match[0]
    return f"{name}{sign}{quote}{hide(bare)}{end}"


def _is_secret(name: str, value: str) -> bool:
    """Whether the value is one, by its name: a token of a language model and a working folder are none."""
    if name == "pwd":
        return not _PATH.match(value)
    if _SURE.search(name):
        return True
    plain = re.fullmatch(r"[A-Za-z0-9_./+=~-]+", value) is not None and not _OF_A_MODEL.search(name)
    return plain and len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


_MARK = re.compile(r"<(?:secret|email|host|ip|text)-[0-9]{1,9}>")
_EMAIL = re.compile(
    r"(?<![\w.+%-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,10}[A-Za-z]{2,24}(?![\w-])"
)
_KEY_LINE = re.compile(r"(?<!\S)[A-Za-z0-9+][A-Za-z0-9+/]{63}(?:[A-Za-z0-9+/]{12})?(?!\S)")
"""A full line of a PEM block, whose beginning may be elsewhere."""
_IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_OF_NOBODY = ("127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1")
_WORD = re.compile(r"<(?:secret|email|host|ip|text)-[0-9]{1,9}>|[A-Za-z0-9][A-Za-z0-9_.-]*")
_PIECES = re.compile(r"([._])")


class Masker:
    """Hides secrets, e-mail addresses and, if told to, host names and IP addresses behind marks such as `<secret-1>`.

    A value has the same mark wherever it stands in what one `Masker` masks, and `unmask` puts all values back, also
    where a text held such marks before: those are hidden, too, as `<text-1>`. So a text is masked once. Lines stay
    lines. `names` are hosts that are known; what the text calls a host is one from then on. With `secrets` False
    texts stay as they are.
    """

    def __init__(
        self, hosts: bool = False, ips: bool = False, names: Collection[str] = (), secrets: bool = True
    ) -> None:
        self._secrets = secrets
        self._hosts = hosts and secrets
        self._ips = ips and secrets
        self._names = known(names)
        self._marks: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def mask(self, text: str) -> str:
        """The text with marks in place of what is hidden. Time is linear in the text."""
        if not self._secrets:
            return text
        text = _MARK.sub(lambda match: self._given("text", match[0]), text)
        text = hide_secrets(text, self._secret)
        text = _KEY_LINE.sub(self._key_line, text)
        text = _EMAIL.sub(lambda match: self._mark("email", match[0]), text)
        if self._ips:
            text = _IPV4.sub(self._address, text)
            text = _IPV6.sub(self._address, text)
        if self._hosts:
            self._names |= called(text)
            text = LIST.sub(lambda match: self._mark("host", match[0]) if is_list(match[0]) else match[0], text)
            text = _WORD.sub(self._word, text)
        return text

    def unmask(self, text: str) -> str:
        """The text with the hidden values in place of their marks. A mark that was never given stays."""
        return _MARK.sub(lambda match: self._values.get(match[0], match[0]), text)

    def _mark(self, kind: str, value: str) -> str:
        """What stands in place of a value, in which something may be hidden already."""
        return self._given(kind, self.unmask(value))

    def _given(self, kind: str, value: str) -> str:
        """The mark of a value as it was in the text: the one that it has, or a new one."""
        with self._lock:
            if value not in self._marks:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                mark = f"<{kind}-{self._counts[kind]}>"
                self._marks[value], self._values[mark] = mark, value
            return self._marks[value]

    def _secret(self, value: str) -> str:
        return "\n".join(self._mark("secret", line) if line else "" for line in value.split("\n"))

    def _key_line(self, match: re.Match[str]) -> str:
        """Hides what is no hash: small, large letters and digits."""
        line = match[0]
        kinds = any(map(str.islower, line)), any(map(str.isupper, line)), any(map(str.isdigit, line))
        return self._mark("secret", line) if all(kinds) else line

    def _address(self, match: re.Match[str]) -> str:
        address = match[0]
        if address in _OF_NOBODY or (":" in address and not _is_ipv6(address)):
            return address
        return self._mark("ip", address)

    def _word(self, match: re.Match[str]) -> str:
        """A word without the host in it; marks stay."""
        word = match[0]
        if word[0] == "<":
            return word
        bare = word.rstrip("._-")
        first, _, domain = bare.partition(".")
        if domain and first in self._names and is_full(bare):
            return f"{self._mark('host', first)}.{self._mark('host', domain)}{word[len(bare) :]}"
        if bare in self._names or is_full(bare):
            return self._mark("host", bare) + word[len(bare) :]
        pieces = _PIECES.split(word)
        return "".join(self._mark("host", piece) if piece in self._names else piece for piece in pieces)


def _is_ipv6(text: str) -> bool:
    """Whether it is an address, and no name of C++ such as `a::b`."""
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return any(map(str.isdigit, text))
