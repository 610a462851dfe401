"""Secrets in log text, hidden before it goes to a model or into the examples of a rule.

Two signs give a secret away: its own form (keys of providers, JSON web tokens, PEM blocks), and the name before it
(`password=`, `"api_key": `, `Authorization: `). Words of language models are not secrets (`tokens=4096`,
`pad_token`), nor are hashes, ids and paths. When in doubt about a name, its value is hidden.
"""

import re

SECRET = "<secret>"
"""What stands in place of a secret."""

_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?!<secret>).*?(-----END [A-Z0-9 ]{0,40}-----|\Z)", re.S
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
    r"""(?![\s"'])(?!<secret>(?:[\\"'\n]|\Z))[^"'\n\\]+""",
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


def mask(text: str) -> str:
    """The text with `<secret>` in place of each password, key, token and cookie; the rest of it as it was.

    Time is linear in the text, and what was masked once stays as it is.
    """
    text = _PEM.sub(rf"\1{SECRET}\2", text)
    text = _HEADER.sub(rf"\1\2{SECRET}", text)
    text = _USER_INFO.sub(_without_password, text)
    text = _SIGNATURE.sub(rf"\1{SECRET}", text)
    text = _FORMS.sub(SECRET, text)
    text = _SLACK_HOOK.sub(rf"\1{SECRET}", text)
    text = _WANDB.sub(_without_key, text)
    text = _BEARER.sub(rf"\1{SECRET}", text)
    text = _LOGIN.sub(rf"\1{SECRET}", text)
    text = _OPTION.sub(rf"\1{SECRET}", text)
    return _NAMED.sub(_without_value, text)


def _without_key(match: re.Match[str]) -> str:
    """The key of Weights & Biases has the form of a commit, which is none when it is called one."""
    return match.group() if _COMMIT.search(match.group(2)) else f"{match.group(1)}{SECRET}"


def _without_password(match: re.Match[str]) -> str:
    """The part of a URL before its host: the user may stay, unless the user is a key."""
    user, password = match.groups()
    if password:
        return f"{user}:{SECRET}@"
    return f"{SECRET}@" if len(user) >= 20 else match.group()


def _without_value(match: re.Match[str]) -> str:
    name, sign, value = match.group("name", "sign", "value")
    quote = value[: len(value) - len(value.lstrip("\\"))] + value.lstrip("\\")[0]
    quote = quote if quote[-1] in "\"'" else ""
    bare = value[len(quote) :].removesuffix(quote)
    if not bare or _NOTHING.match(bare) or not _is_secret(name.lower(), bare):
        return match.group()
    end = quote if quote and value.endswith(quote) and len(value) >= 2 * len(quote) else ""
    return f"{name}{sign}{quote}{SECRET}{end}"


def _is_secret(name: str, value: str) -> bool:
    """Whether the value is one, by its name: a token of a language model and a working folder are none."""
    if name == "pwd":
        return not _PATH.match(value)
    if _SURE.search(name):
        return True
    plain = re.fullmatch(r"[A-Za-z0-9_./+=~-]+", value) is not None and not _OF_A_MODEL.search(name)
    return plain and len(value) >= 8 and any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
