"""Secrets in log text, hidden before it goes to a model or into the examples of a rule.

`mask` hides them for good. A `Masker` hides more, tells different secrets apart, and can restore them.

Four signs give a secret away: that it is random, its own form (provider keys, JSON web tokens, PEM blocks), the name
before it (`password=`, `"api_key": `, `Authorization: `, `the password is `), also at the end of the line before, and
the command that takes it (`curl -u`). Each is also recognised in disguise: with escapes, look-alike letters, or
invisible characters. Words of language models are not secrets (`tokens=4096`, `pad_token`), nor are hashes, ids and
paths, nor remarks about a secret (`the password is wrong`). When in doubt about a name, its value is hidden.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from ipaddress import IPv6Address

from logdoctor.llm.disguises import HIDDEN, hide_disguised, plain
from logdoctor.llm.hosts import LIST, called, is_full, is_list, known
from logdoctor.llm.randomness import hide_random, is_random

SECRET = "<secret>"
"""The replacement of a secret."""

MARK_IN_PATTERN = re.compile(
    r"<secret>|\\?<(?:secret|email|host|ip|text)\\?-"
    r"(?:[0-9]{1,9}|(?:\\d|\[0-9\])(?:[+*]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})?\??)\\?>"
)
"""A replacement as a model writes it into a pattern."""

_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?!<secret>)(.*?)(-----END [A-Z0-9 ]{0,40}-----|\Z)", re.S
)

_PEM_BLOCK = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(.{1,16384}?)(-----END [A-Z0-9 ]{0,40}-----)", re.S
)

_KEY_LINE = re.compile(r"(?<!\S)[A-Za-z0-9+][A-Za-z0-9+/]{63}(?:[A-Za-z0-9+/]{12})?(?!\S)")
"""A full line of a PEM block that may begin elsewhere."""

_GAP = r"[ \t]{0,80}+(?:\.{3,100}+[ \t]{0,80}+)?"
"""Blanks and dots that align columns."""
_CLOSE = r"\\{0,3}[\"'`*]{0,3}"
"""What may follow a name: closing quotes, Markdown's code or bold marks."""
_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Za-z])"  # AWS
    r"|hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|sk-(?=[A-Za-z_-]{0,80}\d)[A-Za-z0-9_-]{20,}"  # OpenAI, and others with its form
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|gl(?:pat|dt|rt|ptt|cbt|ft)-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"  # Google
    r"|wandb_v\d_[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|ldr_[A-Za-z0-9_-]{20,}"
    r"|dckr_[po]at_[A-Za-z0-9_-]{16,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|A[TC][A-Z]TT3x[A-Za-z0-9_=-]{16,}"
    r"|r8_[A-Za-z0-9]{30,}|lsv2_(?:pt|sk)_[A-Za-z0-9_]{16,}|AGE-SECRET-KEY-(?:PQ-)?1[A-Z0-9]{5,}"
    r"|LTAI[A-Za-z0-9]{12,26}(?![0-9A-Za-z])|AKID[A-Za-z0-9]{32}(?![0-9A-Za-z])"  # Alibaba, Tencent
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|hv[sb]\.[A-Za-z0-9_-]{20,}|do[por]_v1_[0-9a-f]{32,}|dapi[0-9a-f]{32}"
    r"|(?:sq[apu]|shp(?:at|ss|ca|pa)|sbp|bk[a-z]{1,2})_[0-9a-f]{32,}|(?:pul|key)-[0-9a-f]{32,}|SK[0-9a-f]{32}"
    r"|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|sntry[su]_[A-Za-z0-9+/=_]{20,}|dp\.[a-z]{2,5}\.[A-Za-z0-9]{20,}"
    r"|(?:NR(?:AK|II|JS)|HRKU|pplx|xai|KGAT|pcsk|rpa|tgp_v1|ntn|figd|lin_(?:api|oauth)|pnu|whsec|CCIPAT|tvly|nfp|glc|secret"
    r"|pscale_(?:tkn|pw|oauth)|sq0[a-z]{3}|fm2)[_-](?=[A-Za-z_-]{0,80}\d)[A-Za-z0-9_-]{20,}"
    r"|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{20,}|\d{8,10}:AA[A-Za-z0-9_-]{30,}"  # Terraform, Telegram
    r"|[MNO][A-Za-z0-9]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{25,}"  # Discord
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{20,}|glsa_[A-Za-z0-9_]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"  # JSON web token
    r")[A-Za-z0-9_-]*"
)
_HOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/(?:v\d{1,3}/)?webhooks/\d{1,30}/"
    r"|webhook\.office\.com/webhookb2/|(?:feishu\.cn|larksuite\.com)/open-apis/bot/(?:v\d{1,3}/)?hook/"
    r"|api\.telegram\.org/(?:file/)?bot|qyapi\.weixin\.qq\.com/cgi-bin/webhook/send\?key=)(?!<secret>)[A-Za-z0-9/:@_-]+",
    re.I,
)
"""Addresses to which anyone who knows them may write."""
_WANDB = re.compile(r"(wandb([^\n]{0,100}?)(?<![0-9a-z]))[0-9a-f]{40}(?![0-9a-z])", re.I)
_COMMIT = re.compile(r"commit|sha|revision", re.I)
_USER_INFO = re.compile(
    r"""(?<=://)(?=(?>[^\s"'@]{0,770})@)(?!\[|[^\s/?#"':<>]{0,520}:<secret>@)"""
    r"""([^\s/?#"'@:<>]{0,256}(?:@[^\s/?#"'@:<>]{1,256}(?=:))?)"""  # the user, who may be an e-mail address
    r"""(:(?:[^\s/"']{1,512}(?=@(?:[\w-]{1,63}[.:]\w|localhost|\[))"""  # up to a host
    r"""|(?!\d{1,5}[/?#])[^\s"'<>]{1,512}(?=@[A-Za-z0-9])"""  # or with a slash, unless it is a port and a path
    r"""|[^\s/"']{1,512}))?@(?!sha256:)"""
)
_USER_AT = re.compile(
    r"""(?<![^\s"'(=])([A-Za-z][\w.-]{0,31}+:)(?=[^\s@:/]{0,64}\d)(?=[^\s@:/]{0,64}[A-Za-z])(?!<secret>)"""
    r"""[^\s@:/"'<>]{8,64}+(?=@(?!sha256:)(?:[A-Za-z][\w-]{0,62}[.:]\w|localhost))"""
)
"""A user and a password of letters and digits before a host, without a scheme."""
_SIGNATURE = re.compile(
    r"""([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)(?!<secret>)[^\s&"']+""", re.I
)
_HEADER = re.compile(
    r"""(?<![A-Za-z])((?:proxy-)?authorization|(?:set-)?cookie)"""
    rf"""({_CLOSE}{_GAP}[:=][ \t]{{0,80}}+\\{{0,3}}["']?|["'],[ \t]{{0,80}}+b?["'](?=[^\s"',]{{1,40}} ))"""
    r"""(?![\s"'])(?!<secret>(?:[\\"'\n]|\Z))([^"'\n\\]+)""",
    re.I,
)
_BEARER = re.compile(
    r"\b(bearer[ \t]{1,4})(?:(?=[A-Za-z._~+/=-]{0,80}\d)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?!auth)[A-Za-z_-]{16,}(?![A-Za-z_.~+/=-]))",
    re.I,
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_-])(token[ \t]{1,4})(?=[A-Za-z]{0,80}\d)(?=\d{0,80}[A-Za-z])[A-Za-z0-9]{24,}(?![\w./-])", re.I
)
"""A token as a header's value: long, of letters and digits alone."""
_PAIR = re.compile(
    r"""((?:auth|credentials?)["']?[ \t]{0,4}[:=]?[ \t]{0,4}[(\[][ \t]{0,4}"""
    r"""["'][^"'\n]{0,80}["'],[ \t]{0,4}["'])(?!<secret>["'])[^"'\n]+""",
    re.I,
)
_REGISTRY = re.compile(r"""(["']auth["'][ \t]{0,4}:[ \t]{0,4}["'])(?!<secret>)[A-Za-z0-9+/=_-]{8,}(?=["'])""")
"""A user and a password in base64, as Docker stores them."""
_LOGIN = re.compile(r"(\blogin[ \t]{1,4}[^\s]{1,80}[ \t]{1,4}password[ \t]{1,4})(?!<secret>)[^\s]+", re.I)

_WORDS = (
    "password|passwd|passphrase|passcode|passwort|kennwort|contraseña|пароль|密码|密碼|口令|パスワード|비밀번호"
    "|mot de passe|senha|parola d'ordine|wachtwoord|hasło"
)
_PASSWORD = "|".join(dict.fromkeys(f"{_WORDS}|{plain(_WORDS)}".split("|")))
_IN_NAMES = (*_PASSWORD.lower().split("|"), "pass", "pw", "secret", "key", "token", "cred", "sessionid", "masterauth")
"""Every name contains one of these words; the rest of a log is skipped."""
_KEY = "(?:api|access|secret|private|account|encryption|signing|auth|master|subscription|license|kaggle)"
_WHOSE = "(?:db|sql|user|root|admin|smtp|redis|postgres|mongo|proxy|become|ssh|sudo|vault|bind|require)"
_STRONG = (
    rf"{_PASSWORD}|pwd|secret|{_KEY}[._-]?key|(?:auth|access|api|hf|hub|huggingface|refresh|session|security|bearer|github"
    r"|gitlab|wandb|slack|bot|private|job|ngc|secret)[_-]?token"
    rf"|{_WHOSE}[_-]?(?:pass|pw)|masterauth"
)
_SPOKEN = rf"(?<![\w-]){_KEY} key|(?<![\w-])(?:auth|access|api|refresh|session|security|bearer|bot) token"
_SURE = re.compile(rf"(?:{_STRONG})\Z")
_OF_A_MODEL = re.compile(
    r"(?:pad|bos|eos|unk|mask|sep|cls|special|image|video|audio|start|end|stop|next|last|first|prev)[_-]token\Z"
)
_QUOTED = r"""(?:[bBrRuUfF]{1,2}|\$)?(?:\\+"[^"\n]*"|\\+'[^'\n]*'|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?)"""
_OPENED = re.compile(r"""(?:[bBrRuUfF]{0,2}|\$)(?P<quote>\\*["'])""")
_SOME = rf"\[[ \t]{{0,4}}(?>(?:{_QUOTED})[ \t]{{0,4}},?[ \t]{{0,4}}){{1,100}}\]?"
"""A list of strings."""
_BARE = r"""[^\s"'&,;\\](?:[^\s"'&,;]|[&,;](?!\s|\Z|[\w.-]{1,40}[=:]))*"""
_MARGIN = r"[ \t]{0,40}(?:\[[^\]\n]{1,40}\]:?[ \t]{1,4})?"
"""What may precede a line: blanks and its rank."""
_RULES = "|\u2502\u2503\u2551"
"""Vertical rules of tables."""
_SIGN = rf"(?:[-=]>|<-|\u2192|:=|={{1,3}}|[:\uff1a{_RULES}])"
_CALL = (
    r"(?!\[)(?:(?:[\w.]{0,80}[(\[]){1,4}+[^()\[\]\"'\n]{0,80}+[\"'][^\n]{0,200}?[\"'][\])]{1,4}+|\$\([^()\n]{1,200}\))"
    r"(?=[\s,;:.)}\]\"'&]|\Z)"
)
_CALLED = re.compile(r"""((?!\[)[^"']*["']|\$\()(.*?)(["'][^"']*|\))\Z""")
"""A call with a string: what precedes its arguments, the arguments, and what follows."""
_NAMED = re.compile(
    r"(?=[^\W_])"  # most characters of a log are not letters: saves half of the time
    rf"(?P<name>{_STRONG}|(?<![A-Za-z0-9])(?:(?:[A-Za-z0-9]{{1,24}}[_-]){{0,3}}token|creds?|credentials?|[a-z]{{0,8}}sessionid)"
    r"|(?<![A-Za-z])(?:(?:new_?|old_?)?pass|pw))"
    rf"(?P<sign>(?P<more>s|[0-9]{{1,2}})?(?:\[[0-9]{{0,3}}\])?{_CLOSE}\]?{_GAP}"
    rf"(?:{_SIGN}|%3d"
    r"|[\u662f\u4e3a\u70ba\u306f][:\uff1a]?(?=[ \t]{0,4}[!-~]))[ \t]{0,80}+)"
    rf"(?P<value>{_SOME}|{_CALL}|{_QUOTED}|{_BARE})",
    re.I,
)
_MIXED = r"(?=[A-Za-z_+=./~-]{0,80}\d)(?=[0-9_+=./~-]{0,80}[A-Za-z])[A-Za-z0-9][A-Za-z0-9_+=./~-]{5,}+"
"""A word of letters and digits."""
_BESIDE = re.compile(
    rf"(?P<name>{_STRONG}|{_SPOKEN}|(?-i:(?<=[A-Z0-9]_)PASS)){_CLOSE}(?P<gap>(?=[ \t]){_GAP})(?:"
    r"(?P<quote>[\"'])(?P<quoted>[^\"'\n]{1,200})(?=[\"'])"
    rf"|(?P<only>[^\s<\"'-]\S{{2,}}+)(?=[ \t]*$)|(?P<mixed>{_MIXED})(?![\w:(]))",
    re.I | re.M,
)
"""A name and its secret without a sign between them: words of a command, columns, a line of .netrc."""
_BEFORE_NAME = re.compile(rf"{_MARGIN}[\w.$-]{{0,60}}[\"'`*]{{0,2}}\Z")
_IS_CALLED = rf"{_CLOSE}{_GAP}[:=][ \t]{{0,80}}+\\{{0,3}}[\"']?"
_LISTED = re.compile(
    rf"([\"'](?:--?)?(?:[A-Za-z0-9]{{1,24}}[_-]){{0,3}}(?:{_STRONG}|token)[\"'],[ \t]{{0,4}}[\"'])(?!<secret>)[^\"'\n]+"
    r"(?![^\"'\n]|[\"'][ \t]{0,4}:)"
    rf"|(\b(?:name|key){_IS_CALLED}[\w.-]{{0,60}}(?:{_STRONG}|token)\\{{0,3}}[\"']?"
    rf"[ \t,\r\n]{{1,44}}\\{{0,3}}[\"']?value{_IS_CALLED})(?!<secret>)[^\"'\s]+"
    rf"|(<(?!secret>)(?:name>)?[\w.-]{{0,60}}(?:{_STRONG})(?:</name>\s{{0,40}}<value)?>)(?!<secret>)[^<\n]+(?=<)"
    rf"|((?:{_PASSWORD}) for (?:'[^'\n]{{1,200}}'|[^\s:]{{1,80}}):[ \t]{{1,4}})(?!<secret>)\S+"
    r"|([\"']username[\"'][ \t]{0,4}:[ \t]{0,4}[\"'][^\"'\n]{0,80}[\"'],"
    r"[ \t]{0,4}[\"']key[\"'][ \t]{0,4}:[ \t]{0,4}[\"'])"
    r"(?!<secret>)[^\"'\n]+"  # Kaggle
    r"|(-pass(?:in|out)?[ \t]{1,4}pass:)(?!<secret>)\S+|(-(?:store|key)pass[ \t]{1,4})(?!<secret>|-)\S+",
    re.I,
)
"""A name and its secret as words of a list, an environment's entry, in XML, or as the answer to a question."""
_GIVEN = re.compile(
    r"(\b(?:echo|printf)[ \t]{1,4}(?:-[neE]{1,3}[ \t]{1,4})?[\"']?)(?!\$|<secret>)[^\n|\"']{1,200}"
    r"(?=[\"']?[ \t]{0,4}\|[^\n|]{0,200}(?:--password-stdin|\bchpasswd|\bsudo -S))"
    r"|((?:--password-stdin|\bchpasswd)[ \t]{0,4}<<<[ \t]{0,4}[\"']?)(?!\$|<secret>)[^\s\"']+"
    r"|(\bidentified (?:with [\w'\"]{1,60} )?by (?:password )?[\"'])(?!<secret>)[^\"'\n]+"
    r"|(\bhtpasswd[ \t]{1,4}-\w{0,8}b\w{0,8}[ \t]{1,4}\S{1,200}[ \t]{1,4}\S{1,80}[ \t]{1,4})(?!<secret>)\S+"
    r"|(\bvault[ \t]{1,4}login[ \t]{1,4}(?:-\S{1,80}[ \t]{1,4}){0,4})(?=[^\s\d=]{0,80}\d)(?![-<])\S+"
    r"|(:5432:[^\s:]{1,80}:[^\s:]{1,80}:)(?!<secret>)\S+"  # .pgpass
    r"|(\bset password for [^\s=]{1,120}[ \t]{0,4}=[ \t]{0,4}[\"'])(?!<secret>)[^\"'\n]+",
    re.I,
)
"""Secrets that commands read from others, or that databases are given."""
_OPTION = re.compile(
    rf"(--(?P<name>(?:[a-z0-9]{{1,24}}[._-]){{0,3}}(?:{_STRONG}|token)|pass|pw)(?P<gap>[ \t]{{1,80}}+))(?!-|<secret>)"
    r"(?P<value>\S++)(?P<alone>[ \t]*\\?$|[ \t]{2}|[ \t]-)?",
    re.I | re.M,
)
_NOTHING = re.compile(
    r"(?:none|null|nil|true|false|yes|no|\*+|<secret>|\.\.\.|(?:Optional\[)?(?:Secret)?(?:str|bytes))\Z", re.I
)
_PATH = re.compile(r"[/~.]|[A-Za-z]:\\")
_FILE = re.compile(r"\.[a-z][a-z0-9]{1,4}\Z")
_COUNT = re.compile(r"(?:\d{1,5}|\d+[.,/%][\d.,/%]*)[A-Za-z]{0,2}\Z")

_PHRASE = re.compile(
    rf"((?:{_PASSWORD}){_CLOSE}{_GAP}[:\uff1a][ \t]{{1,80}}+)(?P<first>(?>{_BARE}))"
    r"(?P<rest>(?:[ \t]{1,4}(?![\w.-]{1,40}[ \t]{0,4}[:=])[!@#$%^*?]?\w[^\s\"'&,;\\=:()<>|]{0,63}){1,11})",
    re.I,
)
"""A password of several words, up to the end of the line or another name."""
_IS = re.compile(
    r"((?<=[adenstyADENSTY\u0400-\uffff])[ \t]"
    r"(?i:is|was|(?:(?:is|was)[ \t]{1,4})?(?:set|changed)[ \t]{1,4}to):?[ \t]{1,4})"
    rf"(?P<value>{_QUOTED}|{_BARE})"
)
_BEFORE_IS = re.compile(rf"(?:{_STRONG}|{_SPOKEN}|(?<![\w-])token)\Z", re.I)
_NAME = 24
_COLON = re.compile(
    rf"((?P<name>{_SPOKEN})(?: (?:provided|supplied|given|used))?{_CLOSE}{_GAP}{_SIGN}[ \t]{{0,80}}+)"
    rf"(?P<value>{_CALL}|{_QUOTED}|{_BARE})",
    re.I,
)
_ASKS = (
    rf"(?:(?:{_STRONG}|{_SPOKEN}){_CLOSE}{_GAP}[:=][ \t]{{0,4}}[|>]?[+-]?|(?<![^\s])(?:{_PASSWORD})"
    rf"|(?:paste|enter|type)[^\n]{{0,60}}?(?:key|token|{_PASSWORD})[^\n]{{0,120}})[ \t]{{0,4}}\r?"
)
_NEXT = re.compile(
    rf"({_ASKS}\n(?:[ \t]{{0,40}}\r?\n)?{_MARGIN})(?P<value>(?!<secret)\S{{3,}})(?=[ \t\r]*$)", re.I | re.M
)
"""The only word of a line after one that asks for a secret or ends with its name."""
_REST = re.compile(
    rf"((?:<secret(?:-[0-9]{{1,9}})?>|{HIDDEN})\r?\n)(?P<value>[A-Za-z0-9+/=_-]{{4,}})(?![A-Za-z0-9+/=_.:-])"
)
"""What may be the second half of a secret that a line end broke."""
_ASKED = re.compile(rf"{_ASKS}\Z", re.I)
_LONG = re.compile(r"[A-Za-z0-9+/_-]{16}\Z")
_NAME_OF_NEXT = 400  # characters
_SAID_OF = re.compile(
    r"(?:not (?:set|given|found|provided|supplied|specified|configured|correct|valid|accepted|allowed|required"
    r"|available|match\w{0,3})|must (?:be|not|contain|have)|cannot be|permission denied|access denied"
    r"|connection (?:closed|reset|refused|timed)|authentication (?:failed|failure|error|token|method)"
    r"|input/output error|no such|context deadline|errors? (?:from|in|while|reading)"
    r"|operation (?:not|timed)|host key|timed out"
    r"|(?:required|incorrect|invalid|wrong|missing|expired|unset|empty|rejected)"
    r"(?=[.,;)!]{0,2}[ \t]{0,4}(?:\n|\Z)|[,;] | (?:for|in|by|but|and|or|from|on|at|to|is|was|when) ))",
    re.I,
)
"""Remarks about a password where the password itself might stand."""
_TROUBLE = re.compile(
    r"\b(?:errors?|fail\w{0,4}|refused|denied|time(?:d |-)?out|unreachable|deadline|exceeded|exception|unable"
    r"|not found)\b",
    re.I,
)
_OF_IT = re.compile(
    r"(?:not|required|incorrect|invalid|wrong|empty|missing|too|set|unset|mandatory|correct|valid|ok|okay|bad|unknown|an?"
    r"|the|in|no|only|optional|visible|weak|strong|short|long|same|different|at|read|now|still|already|also|never|always"
    r"|to|that|for|by|on|off|here|there|from|your|my|its|present|absent|out|blank|reset|sent|kept|wise|safe|secure|plain"
    r"|undefined|under|over|about|probably|likely|what|where|when|how|this|one|just|of|as|been|has|had|hidden|if|or|and"
    r"|but|with|without|case-sensitive|more|less|all|being|going|up|down|fine|good|great|old|new|stale|public|private"
    r"|(?-i:str|bytes|int|bool)"
    r"|(?:accept|access|allow|attach|authoriz|cach|chang|check|configur|copi|creat|decod|defin|delet|deni|deprecat|disabl"
    r"|enabl|encod|encrypt|enter|exceed|expect|expir|export|fail|generat|hash|ignor|inject|leak|limit|load|lock|log|mask"
    r"|match|mount|need|obtain|omit|pars|pass|print|provid|prompt|read|receiv|redact|refresh|refus|regist(?:er)?|reject"
    r"|renew|replac|requir|revok|rotat|sav|search|shar|skipp|specifi|stor|suppli|support|test|updat|us|validat|verif[iy]"
    r"|writ)(?:ed|ing|able)|leaking|missing|using|being|(?:un|in)?available|usable|possible|correctly|incorrectly|probably"
    r"|successfully|automatically|previously|directly|only|manually|recently|newly|properly)[.,;:!?)]{0,3}\Z",
    re.I,
)
"""A word that continues a remark about a password. Words by their endings would let passwords through."""

_FLAG = re.compile(
    r"""(?P<flag>-(?<=[\s"']-)(?:pw(?=[ \t])|[pPuUawk]|[fgiIkLNsSv]{1,8}u(?=[ \t"'])|-(?:proxy-)?user))"""
    r"""(?P<gap>["']?,?[ \t=]{1,4}["']?|["']|)(?!-|<secret>)"""
    r"""(?P<value>(?<=")[^"\n]{1,200}(?=")|(?<=')[^'\n]{1,200}(?=')|[^\s"']{1,512})"""
)
_COMMAND = re.compile(
    r"(?<![\w.-])(?:(?P<login>(?:docker|podman|nerdctl|buildah|skopeo|singularity|apptainer|helm|oras|crane|oc|az)\b"
    r"[^\n|;&]{0,40}?[ \t\"',]login)|(?P<p>sshpass|mongo\w{0,8}|cqlsh)|(?P<glued>(?:mysql|mariadb)[\w-]{0,10}|7z[ar]?)"
    r"|(?P<P>ipmitool|sqlcmd|zip|unzip)|(?P<a>redis-cli)|(?P<w>ldap\w{3,8}|plink|pscp|psftp)|(?P<pair>curl)|(?P<percent>smbclient)"
    r"|(?P<comma>lftp)|(?P<k>openssl|swanlab)"
    r"|ssh|scp|sftp|rsync|docker|podman|kubectl|git|python[\d.]{0,5}|torchrun|srun|sbatch|mkdir|cp|tar|nc|bash|sh)"
    r"""(?=["']?,?[ \t])"""
)
"""Commands that take a password behind a short flag, and others whose flags mean something else."""
_REACH = 300
_ITS_FLAGS = {
    "login": "pP",
    "p": "p",
    "glued": "p",
    "P": "P",
    "a": "a",
    "w": "w",
    "pair": "uU",
    "percent": "U",
    "comma": "u",
    "k": "k",
}
_BETWEEN = {"pair": ":", "percent": "%", "comma": ","}
"""Separators of user and password."""
_REMEMBERED = 500  # longest line, in characters, that is cached as harmless
_MOST_PASSES = 4
"""A replacement may free a secret that was glued to another, and hardly ever a third."""

Hide = Callable[[str], str]
"""Returns the replacement of a value."""


def mask(text: str) -> str:
    """Return the text with `<secret>` in place of each password, key, token and cookie.

    Time is linear in the text, and masked text stays as it is.
    """
    text = hide_secrets(text, lambda _: SECRET)
    for _ in range(_MOST_PASSES - 1):
        lines = text.split("\n")
        changed = [at for at, line in enumerate(lines) if SECRET in line]
        before = [lines[at] for at in changed]
        after = hide_secrets("\n".join(before), lambda _: SECRET).split("\n")
        if after == before or len(after) != len(before):
            break
        for at, line in zip(changed, after, strict=True):
            lines[at] = line
        text = "\n".join(lines)
    return text


def leads_on(line: str) -> bool:
    """Return whether a line may name or begin a secret that continues in the next."""
    end = line.rstrip()[-_NAME_OF_NEXT:]
    return bool(_LONG.search(end) or (_may_name(end) and _ASKED.search(end)))


def hide_secrets(text: str, hide: Hide) -> str:
    """Return the text with each password, key, token and cookie replaced by `hide`."""
    return _hide_plain(hide, hide_disguised(_hide_plain, hide, text))


@lru_cache(maxsize=4096)
def _is_harmless(line: str) -> bool:
    """Return whether a line holds nothing to hide. Cached, because prompts repeat lines."""
    return hide_secrets(line, lambda _: "") == line


def _hide_plain(hide: Hide, text: str) -> str:
    """Replace the secrets in a text that are not disguised."""
    text = _PEM.sub(lambda match: f"{match[1]}{hide(match[2])}{match[3]}", text)
    text = _HEADER.sub(lambda match: f"{match[1]}{match[2]}{hide(match[3])}", text)
    text = _USER_INFO.sub(partial(_without_password, hide), text)
    text = _USER_AT.sub(partial(_behind, hide), text)
    text = _SIGNATURE.sub(partial(_behind, hide), text)
    text = _without_arguments(hide, text)
    text = _FORMS.sub(lambda match: hide(match[0]), text)
    text = _HOOK.sub(partial(_behind, hide), text)
    text = _WANDB.sub(partial(_without_key, hide), text)
    text = _BEARER.sub(partial(_behind, hide), text)
    text = _TOKEN.sub(partial(_behind, hide), text)
    text = _PAIR.sub(partial(_behind, hide), text)
    text = _REGISTRY.sub(partial(_behind, hide), text)
    text = _LOGIN.sub(partial(_behind, hide), text)
    text = _GIVEN.sub(partial(_behind_any, hide), text)
    text = _without_named(hide, text)
    text = _KEY_LINE.sub(lambda match: hide(match[0]) if _is_of_a_key(match[0]) else match[0], text)
    text = hide_random(hide, text)
    return _REST.sub(partial(_without_rest, hide), text)


def _may_name(line: str) -> bool:
    lower = line.lower()
    return any(word in lower for word in _IN_NAMES)


def _without_named(hide: Hide, text: str) -> str:
    """Replace the secrets that have a name in their line or in one of the two before."""
    lines = text.split("\n")
    named = (at for at, line in enumerate(lines) if _may_name(line))
    near = [at for at in dict.fromkeys(at + more for at in named for more in range(3)) if at < len(lines)]
    text = "\n".join(lines[at] for at in near)
    text = _NEXT.sub(partial(_without_only, hide), text)
    text = _LISTED.sub(partial(_behind_any, hide), text)
    text = _OPTION.sub(partial(_without_option, hide), text)
    text = _PHRASE.sub(partial(_without_phrase, hide), text)
    text = _IS.sub(partial(_without_said, hide), text)
    text = _COLON.sub(partial(_without_said, hide), text)
    text = _BESIDE.sub(partial(_without_neighbour, hide), text)
    text = _NAMED.sub(partial(_without_value, hide), text)
    for at, line in zip(near, text.split("\n") if near else (), strict=True):
        lines[at] = line
    return "\n".join(lines)


def _is_of_a_key(line: str) -> bool:
    """Return whether a full line has small and large letters and digits, unlike a hash."""
    return all(any(map(kind, line)) for kind in (str.islower, str.isupper, str.isdigit))


def _without_only(hide: Hide, match: re.Match[str]) -> str:
    """Replace the only word of a line, unless it is a remark about the secret."""
    return match[0] if _OF_IT.match(match["value"]) or _is_nothing(match["value"]) else _behind(hide, match)


def _without_rest(hide: Hide, match: re.Match[str]) -> str:
    return _behind(hide, match) if is_random(match["value"], 4) else match[0]


def _behind(hide: Hide, match: re.Match[str]) -> str:
    """Replace what follows the first group of a match."""
    return f"{match[1]}{hide(match[0][len(match[1]) :])}"


def _behind_any(hide: Hide, match: re.Match[str]) -> str:
    """Replace what follows the group that matched."""
    head = match[match.lastindex or 0]
    return f"{head}{hide(match[0][len(head) :])}"


def _without_key(hide: Hide, match: re.Match[str]) -> str:
    """Replace a Weights & Biases key; it looks like a commit, and stays if called one."""
    return match[0] if _COMMIT.search(match[2]) else _behind(hide, match)


def _without_password(hide: Hide, match: re.Match[str]) -> str:
    """Replace a URL's password; without one, a user of at least 20 characters, who is a key."""
    user, password = match.groups()
    if password:
        return f"{user}:{hide(password[1:])}@"
    return f"{hide(user)}@" if len(user) >= 20 else match[0]


def _without_arguments(hide: Hide, text: str) -> str:
    """Replace the passwords that commands take behind a short flag."""
    commands = list(_COMMAND.finditer(text))
    if not any(command.lastgroup for command in commands):
        return text
    ends = [command.end() for command in commands]

    def without_argument(match: re.Match[str]) -> str:
        at = bisect_right(ends, match.start()) - 1  # the last command before the flag
        if at < 0 or match.start() - ends[at] > _REACH or "\n" in text[ends[at] : match.start()]:
            return match[0]
        return _without_argument(hide, commands[at].lastgroup, match)

    return _FLAG.sub(without_argument, text)


def _without_argument(hide: Hide, kind: str | None, match: re.Match[str]) -> str:
    """Replace the password behind a flag, if this kind of command takes one there."""
    flag, gap, value = match.group("flag", "gap", "value")
    letter = "u" if flag[1] == "-" else flag[-1]
    if kind is None or letter not in _ITS_FLAGS[kind] or (kind == "glued" and gap.strip("\"'")):
        return match[0]
    if kind not in _BETWEEN:
        return f"{flag}{gap}{hide(value)}"
    user, sign, password = value.partition(_BETWEEN[kind])
    hidden = password and password != SECRET and not (user + password).isdigit()  # user and group ids
    return f"{flag}{gap}{user}{sign}{hide(password)}" if hidden else match[0]


def _without_option(hide: Hide, match: re.Match[str]) -> str:
    """Replace the secret of an option; far behind one, help text may stand instead."""
    name, gap, value, alone = match.group("name", "gap", "value", "alone")
    of_a_model = value.isdigit() or _OF_A_MODEL.search(name.lower())
    if (name.lower().endswith(("token", "pass", "pw")) and of_a_model) or (len(gap) > 4 and alone is None):
        return match[0]
    return f"{match[1]}{hide(value)}{alone or ''}"


def _without_phrase(hide: Hide, match: re.Match[str]) -> str:
    """Replace all words of a password, unless they report a failure."""
    first, rest = match.group("first", "rest")
    if _is_nothing(first) or _TROUBLE.search(rest) or _SAID_OF.match(match.string, match.start("first")):
        return match[0]
    return _behind(hide, match)


def _without_said(hide: Hide, match: re.Match[str]) -> str:
    """Replace the secret in words about it; the rest of them stays."""
    if match.re is _COLON:
        name = match["name"].lower()
    elif before := _BEFORE_IS.search(match.string, max(0, match.start() - _NAME), match.start()):
        name = before[0].lower()
    else:
        return match[0]
    quote, bare, end = _unquoted(match["value"])
    if not bare or _is_nothing(bare) or "<secret>" in bare or not _is_said(match, name, bare, bool(quote)):
        return match[0]
    return f"{match[1]}{quote}{hide(bare)}{end}"


def _is_said(match: re.Match[str], name: str, value: str, quoted: bool) -> bool:
    """Return whether the word behind a name is the secret itself, not a remark."""
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    if re.fullmatch(_PASSWORD, name):
        return quoted or not _OF_IT.match(value)
    if match.re is _IS or name.endswith("token"):
        plain = re.fullmatch(r"[\w./+=~!@#$%^*-]{6,}", value) is not None and not _PATH.match(value)
        return (mixed and plain) or (quoted and not name.endswith("token"))
    about = _OF_IT.match(value) or _SAID_OF.match(match.string, match.start("value")) or _PATH.match(value)
    trouble = value.isalpha() and _TROUBLE.search(match.string, match.end("value"), match.end("value") + 60)
    return quoted or not (about or trouble)


def _without_neighbour(hide: Hide, match: re.Match[str]) -> str:
    """Replace what stands beside a name, if it is a secret."""
    value = match["quoted"] or match["only"] or match["mixed"]
    hidden = not _is_nothing(value) and _is_beside(match, match["name"], value)
    return f"{match[0][: -len(value)]}{hide(value)}" if hidden else match[0]


def _is_beside(match: re.Match[str], name: str, value: str) -> bool:
    """Return whether a value is secret: quoted, of letters and digits, or alone with its name."""
    password, wide = re.fullmatch(_PASSWORD, name, re.I), len(match["gap"]) > 1 or match["gap"] == "\t"
    if match["quoted"]:
        return bool(password or wide)
    if _PATH.match(value) or name.lower() == "pwd":
        return False
    if re.fullmatch(_MIXED, value) and (
        name.isupper() or (len(value) >= 8 and name.lower() != "secret" and not _FILE.search(value))
    ):
        return True
    begin = max(match.start() - 120, 0)
    begin = match.string.rfind("\n", begin, match.start()) + 1 or begin
    alone = match["only"] and ("..." in match["gap"] or _BEFORE_NAME.match(match.string[begin : match.start()]))
    return bool((password or wide) and alone and any(map(str.isalnum, value)) and not _OF_IT.match(value))


def _without_value(hide: Hide, match: re.Match[str]) -> str:
    name, sign, value = match.group("name", "sign", "value")
    quote, bare, end = _unquoted(value)
    if not bare or _is_nothing(bare) or not _is_secret(name, sign, bare, bool(quote)):
        return match[0]
    if sign.strip()[-1:] in _RULES and not any(map(str.isalnum, bare)):  # an empty cell
        return match[0]
    if match["more"] and (_COUNT.match(bare) or not any(map(str.isalnum, bare))):
        return match[0]
    if not quote and ":" in sign and _SAID_OF.match(match.string, match.start("value")):
        return match[0]
    return f"{name}{sign}{quote}{hide(bare)}{end}"


def _unquoted(value: str) -> tuple[str, str, str]:
    """Return (opening, value, closing) of a quoted value or a call with a string."""
    opened = _OPENED.match(value)
    if opened is None:
        called = _CALLED.match(value)
        return (called[1], called[2], called[3]) if called else ("", value, "")
    begin, ends = opened.end(), (opened["quote"], opened["quote"][-1])  # what was opened as \" may be closed by "
    end = next((end for end in ends if value.endswith(end) and len(value) >= begin + len(end)), "")
    return value[:begin], value[begin : len(value) - len(end)], end


def _is_nothing(value: str) -> bool:
    return bool(_NOTHING.match(value) or _NOTHING.match(value.rstrip(")]}.")))


def _is_strong(name: str) -> bool:
    return bool(_SURE.search(name))


def _is_secret(name: str, sign: str, value: str, quoted: bool) -> bool:
    """Return whether a named value is a secret; tokens of a model and working folders are not."""
    lower = name.lower()
    if lower.endswith(("pass", "pw")) and not _is_strong(lower):
        return _is_pass(name, sign, value, quoted)
    if lower == "pwd":
        return not _PATH.match(value)
    if _is_strong(lower):
        return True
    if sign[0].isalnum() or _OF_A_MODEL.search(lower):  # tokens of a model
        return False
    if lower.startswith("cred") and _PATH.match(value):
        return False
    if re.fullmatch(r"[A-Za-z0-9_./+=~-]+", value) is None or len(value) < 8:
        return False
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed or (value.isalpha() and lower == "token" and not _OF_IT.match(value) and _is_random(sign, value))


def _is_random(sign: str, value: str) -> bool:
    """Return whether a token of letters alone is random; behind a colon, words may stand."""
    return sign.strip("\\\"']") == "=" or len(value) >= 16


def _is_pass(name: str, sign: str, value: str, quoted: bool) -> bool:
    """Return whether a `pass` is a password, not a training step or a test result."""
    if _COUNT.match(value) or not ("=" in sign or "'" in sign or '"' in sign):
        return False
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return quoted or name.isupper() or len(name) > len("pass") or mixed


_MARK = re.compile(r"<(?:secret|email|host|ip|text)-[0-9]{1,9}>")
_EMAIL = re.compile(
    r"(?<![\w.+%-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,10}[A-Za-z]{2,24}(?![\w-])"
)
_IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_OF_NOBODY = ("127.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1")
_WORD = re.compile(r"<(?:secret|email|host|ip|text)-[0-9]{1,9}>|[A-Za-z0-9][A-Za-z0-9_.-]*")
_PIECES = re.compile(r"([._-])")
_MOST_PIECES = 15  # most pieces of a name, separators included: longer ones are no host, and time stays linear


class Masker:
    """Hides secrets, e-mail addresses and, if asked to, host names and IP addresses behind marks such as `<secret-1>`.

    A value has the same mark throughout one `Masker`, and `unmask` restores all values. Marks that a text held before
    are hidden as `<text-1>`, so mask a text only once. Lines stay lines. `names` are known hosts; what the text calls a
    host joins them. With `secrets` False texts stay as they are.
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
        """Return the text with marks in place of what is hidden. Time is linear in the text."""
        if not self._secrets:
            return text
        return self._hidden(_MARK.sub(lambda match: self._given("text", match[0]), text))

    def mask_rest(self, text: str) -> str:
        """Mask the rest of a text, parts of which may be masked, line by line. Marks stay."""
        if not self._secrets:
            return text
        text = _PEM_BLOCK.sub(lambda match: f"{match[1]}{self._secret(match[2])}{match[3]}", text)
        return "\n".join(
            self._hidden(line, is_harmless=len(line) <= _REMEMBERED and _is_harmless(line)) for line in text.split("\n")
        )

    def _hidden(self, text: str, is_harmless: bool = False) -> str:
        text = text if is_harmless else hide_secrets(text, self._secret)
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
        """Return the text with the hidden values restored. Unknown marks stay."""
        return _MARK.sub(lambda match: self._values.get(match[0], match[0]), text)

    def _mark(self, kind: str, value: str) -> str:
        """Return the mark of a value that may contain marks."""
        return self._given(kind, self.unmask(value))

    def _given(self, kind: str, value: str) -> str:
        """Return a plain value's mark, a new one if it has none."""
        with self._lock:
            if value not in self._marks:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                mark = f"<{kind}-{self._counts[kind]}>"
                self._marks[value], self._values[mark] = mark, value
            return self._marks[value]

    def _secret(self, value: str) -> str:
        return "\n".join(self._mark("secret", line) if line else "" for line in value.split("\n"))

    def _address(self, match: re.Match[str]) -> str:
        address = match[0]
        if address in _OF_NOBODY or (":" in address and not _is_ipv6(address)):
            return address
        return self._mark("ip", address)

    def _word(self, match: re.Match[str]) -> str:
        """Replace the host in a word; marks stay."""
        word = match[0]
        if word[0] == "<":
            return word
        bare = word.rstrip("._-")
        first, _, domain = bare.partition(".")
        if domain and first in self._names and is_full(bare):
            return f"{self._mark('host', first)}.{self._mark('host', domain)}{word[len(bare) :]}"
        if bare in self._names or is_full(bare):
            return self._mark("host", bare) + word[len(bare) :]
        return self._without_pieces(word)

    def _without_pieces(self, word: str) -> str:
        """Replace the longest runs of a word's pieces that are known hosts."""
        pieces, parts, at = _PIECES.split(word), list[str](), 0
        while at < len(pieces):
            runs = (min(at + many, len(pieces)) for many in range(_MOST_PIECES, 0, -2))
            end = next((end for end in runs if "".join(pieces[at:end]) in self._names), None)
            parts.append(self._mark("host", "".join(pieces[at:end])) if end else pieces[at])
            at = end or at + 1
        return "".join(parts)


def _is_ipv6(text: str) -> bool:
    """Return whether a text is an IPv6 address, not a C++ name such as `a::b`."""
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return any(map(str.isdigit, text))
