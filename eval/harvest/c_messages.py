"""Messages in C and C++ sources: calls that print, log or raise, and what is streamed into them."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import regex

from eval.harvest.values import NONE, filled

_STRING = r'"(?:\\.|[^"\\\n])*"'
_TOKEN = regex.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/|\s+)"
    r"|R\"(?P<fence>[^(\s\"]{0,16})\((?P<raw>.*?)\)(?P=fence)\""
    rf"|(?:u8|[LuU])?(?P<string>{_STRING})"
    r"|(?P<char>'(?:[^'\\\n]|\\.){1,8}')"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark><<|::|->|[()\[\]{},;?:])|(?P<other>[\d.]+|\S)",
    regex.DOTALL,
)
_HIDDEN = regex.compile(rf"//[^\n]*|/\*.*?\*/|{_STRING}|'(?:[^'\\\n]|\\.){{1,8}}'", regex.DOTALL)
_FUNCTION = regex.compile(r"^(?!#)[A-Za-z_][\w \t*]*?\b(?P<name>\w+)\((?![^\n]*;[ \t]*$)", regex.MULTILINE)
_ESCAPE = regex.compile(r"\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}|(?P<char>.))", regex.DOTALL)  # drops colours and bytes
_ESCAPES = {"n": "\n", "t": "\t", **dict.fromkeys("abfrv\n", "")}
_WIDTH = {"PRIu64": "lu", "PRId64": "ld", "PRIx64": "lx", "PRIX64": "lX", "PRIu32": "u", "PRIx32": "x", "PRIuPTR": "lu"}
_PLACE = regex.compile(r"%[-+#0\d.*]*(?:l{1,2}|z)?[a-zA-Z]|\{[\w:#.<>]{0,12}\}")
_WORTH = regex.compile(r"[A-Za-z]{3,}")
_WIDEST = 12_000  # characters of one call

Token = tuple[str, str]
"""Kind and text; a string's text is unescaped."""


class Call(NamedTuple):
    """One call that prints: its line, name, enclosing function, text, and the arguments for its places.

    Anything between literals, such as a macro's parameter or a streamed value, stands in it as `⟦name⟧`.
    """

    line: int
    name: str
    function: str
    text: str
    arguments: tuple[str, ...]


def calls(text: str, names: Collection[str], macros: Mapping[str, str] = NONE) -> Iterator[Call]:
    """Yield the calls and streams that begin with an expression such as `WARN` or `LOG\\(ERROR\\)`.

    `f("a %s", x)`, `f("a", x, "b")` and `f() << "a" << x << "b"` are all read, inside of macros too; a text that has
    places takes what follows as its arguments. `macros` gives the texts of macros that stand between literals.
    """
    text = text.replace("\\\n", " \n")  # continued lines, with the line count kept
    starts = list(regex.finditer(rf"(?<![\w\"#])(?P<name>{'|'.join(names)})\s*(?=\(|<<)", text))
    if not starts:
        return
    known = {**_WIDTH, **macros}
    hidden = [match.span() for match in _HIDDEN.finditer(text)]
    functions = [(match.start(), match["name"]) for match in _FUNCTION.finditer(text)]
    for match in starts:
        at = match.start()
        while hidden and hidden[0][1] <= at:
            hidden.pop(0)
        if (hidden and hidden[0][0] <= at) or regex.search(r"#[ \t]*define[ \t]+$", text[max(at - 20, 0) : at]):
            continue
        while len(functions) > 1 and functions[1][0] <= at:
            functions.pop(0)
        said, arguments = _message(_parts(text, match.end()), known)
        if said:
            function = functions[0][1] if functions and functions[0][0] <= at else ""
            yield Call(text.count("\n", 0, at) + 1, match["name"], function, said, arguments)


def printed(call: Call, own: Mapping[str, str] = NONE) -> str:
    """Return the text of a call with plausible values in its places; see `filled`."""
    function = {r"^__(?:func|FUNCTION)__$": call.function} if call.function else {}
    return filled(call.text, call.arguments, {**own, **function}).strip()


def literals(text: str) -> str:
    """Return the string literals of a piece of source, joined."""
    return "".join(unescaped(literal[1:-1]) for literal in regex.findall(_STRING, text))


def unescaped(literal: str) -> str:
    """Return a string literal's text, given without quotes."""
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match["char"], match["char"] or ""), literal)


def lines(text: str) -> list[str]:
    """Return the lines of a text that have a word; each is matched by itself."""
    return [line for line in text.split("\n") if _WORTH.search(line)]


def _parts(text: str, begin: int) -> list[list[Token]]:
    """Return the arguments of a call that opens at `begin`, and streamed values, each as tokens."""
    parts, depth, streamed = [list[Token]()], 0, False
    for match in _TOKEN.finditer(text, begin, begin + _WIDEST):
        kind, mark = match.lastgroup or "", match["mark"] or ""
        if kind == "comment":
            continue
        depth += (mark in ("(", "[", "{")) - (mark in (")", "]", "}")) if mark else 0
        if depth < 0 or (mark == ";" and depth < 2):
            break
        if depth == 0 and mark == ")" and not streamed:  # the end of the arguments
            if not regex.match(r"\s*<<", text[match.end() : match.end() + 200]):
                break
            streamed = True
        elif (mark == "," and depth == 1 and not streamed) or (mark == "<<" and depth == 0):
            streamed = streamed or mark == "<<"
            parts.append([])
        elif mark == "," and depth == 0:
            break
        elif not (mark == "(" and depth == 1 and not streamed and not parts[0] and len(parts) == 1):
            parts[-1].append(_token(match))
    return parts


def _token(match: regex.Match[str]) -> Token:
    if match["raw"] is not None:
        return "string", match["raw"]
    if match["string"] is not None:
        return "string", unescaped(match["string"][1:-1])
    return str(match.lastgroup), match.group()


def _message(parts: list[list[Token]], macros: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the first part's text with a literal, and the rest as arguments or joined."""
    first = next((number for number, part in enumerate(parts) if any(kind == "string" for kind, _ in part)), None)
    if first is None:
        return "", ()
    part, rest = parts[first], parts[first + 1 :]
    if len(part) > 2 and part[-1] == ("mark", ")") and (inner := _inside(part)):  # one call: `StrCat("a", x)`, `_("a")`
        said, arguments = _message(inner, macros)
        if said:
            return _with_rest(said, arguments, rest, macros)
    return _with_rest(_joined(part, macros), (), rest, macros)


def _with_rest(
    said: str, arguments: tuple[str, ...], rest: list[list[Token]], macros: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    if _PLACE.search(said):
        return said, (*arguments, *("".join(text for _, text in part) for part in rest))
    return said + "".join(_joined(part, macros) or _gap(part) for part in rest), arguments


def _inside(part: list[Token]) -> list[list[Token]]:
    """Return the arguments of a part that is a single call."""
    start = part.index(("mark", "(")) if ("mark", "(") in part else 0
    if any(kind == "string" or text == "?" for kind, text in part[:start]):
        return []
    depth, inner = 0, [list[Token]()]
    for number, (kind, text) in enumerate(part[start:], start):
        depth += (kind == "mark" and text in "([{") - (kind == "mark" and text in ")]}")
        if depth == 0:
            return inner if number == len(part) - 1 else []
        if text == "," and kind == "mark" and depth == 1:
            inner.append([])
        elif number > start:
            inner[-1].append((kind, text))
    return []


def _joined(part: list[Token], macros: Mapping[str, str]) -> str:
    """Return a part's literals, with marks for what stands between and behind them. Of a choice only the first counts;
    "" without literals."""
    said, between, depth, skipped = "", list[Token](), 0, -1
    for kind, text in part:
        depth += (kind == "mark" and text in "([{") - (kind == "mark" and text in ")]}")
        if 0 <= skipped <= depth:
            continue
        skipped = -1
        if kind == "string":
            said += _gap(between) + text if said or not any(mark in "(,;" for _, mark in between) else text
            between = []
        elif text == "?":
            said, between = ("" if depth == 0 else said), []
        elif text == ":" and kind == "mark" and said:
            skipped = depth
        elif text in macros:
            said += _gap(between) + macros[text]
            between = []
        else:
            between.append((kind, text))
    return said + _gap(between) if any(kind == "string" for kind, _ in part) else ""


def _gap(tokens: list[Token]) -> str:
    """Return the mark of what is filled in between literals; "" for operators alone."""
    expression = "".join(text for _, text in tokens).strip("#<>.()+, ")
    return f"⟦{expression[:400]}⟧" if regex.search(r"\w", expression) else ""
