"""Messages in Python sources: what they raise, assert, warn and log, as printed lines."""

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import regex

from eval.harvest.values import NONE, filled, value_of

LEVELS = {
    **dict.fromkeys(("error", "exception", "termerror"), "ERROR"),
    **dict.fromkeys(("critical", "fatal"), "CRITICAL"),
    **dict.fromkeys(("warning", "warn", "warning_once", "termwarn", "rank_zero_warn", "warn_rank"), "WARNING"),
    **dict.fromkeys(("info", "log", "termlog", "rank_zero_info"), "INFO"),
}
"""The level at which a function of this name logs."""

_LOGGER = regex.compile(r"(?i)log|^warnings$|^rank_zero|^cli_logger$")
_BARE = regex.compile(r"term\w+|rank_zero_(?:warn|info)|warn_rank")
_EXCEPTION = regex.compile(r"(?:Error|Exception|Failure|Fault|Timeout|Died|Unavailable|Interrupt|Full|Lost)$")
_SHORTEST = 6  # fewest letters of a text that counts

Names = dict[str, ast.expr]
"""Strings that the names of a function stand for."""


class Said(NamedTuple):
    """One message: its source line, how it is said (an exception's name or a level), and its text."""

    line: int
    how: str
    text: str

    @property
    def logged(self) -> bool:
        """Whether it is a log line, not an exception."""
        return self.how in LEVELS.values()

    @property
    def loud(self) -> bool:
        """Whether it reports a failure; healthy programs print the others too."""
        return self.how not in ("WARNING", "UserWarning", "INFO")

    def printed(self, prefix: str = "", modules: Mapping[str, str] = NONE) -> str:
        """Return the first line as a traceback or a logger prints it. A logger's `prefix` (`{level}`, `{line}`)
        precedes it, or the exception's module and name."""
        first = next((line for line in self.text.splitlines() if line.strip()), "")
        if self.logged:
            return prefix.replace("{level}", self.how).replace("{line}", str(self.line)) + first
        return f"{modules.get(self.how, '')}{self.how}: {first}"


def messages(source: str) -> Iterator[Said]:
    """Yield the texts that a source raises, asserts, logs, warns or defines in exceptions, in order."""
    yield from sorted({said for node, names in _nodes(source) for said in _messages(node, names)})


def exceptions(source: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the exception classes that a source defines, with the names of their bases."""
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(_last(base) for base in node.bases)
            if any(_EXCEPTION.search(base) for base in bases):
                yield node.name, bases


def _messages(node: ast.AST, names: Names) -> Iterator[Said]:
    """Yield the message of one statement or call, without its parts."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        how = _last(node.exc.func)
        yield from _called(node.exc, how if how[:1].isupper() else "RuntimeError", names)
    elif isinstance(node, ast.Assert) and node.msg is not None:
        yield from _one(node.lineno, "AssertionError", _text(node.msg, names))
    elif isinstance(node, ast.Call):
        yield from _called(node, _level(node), names)
    elif isinstance(node, ast.ClassDef) and _EXCEPTION.search(node.name):
        yield from _of_class(node)


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _nodes(source: str) -> Iterator[tuple[ast.AST, Names]]:
    """Yield every node of a source, with the strings that names stand for in its function."""
    todo: list[tuple[ast.AST, Names]] = [(_parsed(source), {})]
    while todo:
        node, names = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            names = names | {
                target.id: one.value
                for one in ast.walk(node)
                if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant | ast.JoinedStr | ast.BinOp)
                for target in one.targets
                if isinstance(target, ast.Name)
            }
        yield node, names
        todo += [(child, names) for child in ast.iter_child_nodes(node)]


def _level(call: ast.Call) -> str:
    """Return the level at which a call logs, `UserWarning` for Python's warnings, else ""."""
    name = _last(call.func)
    if name == "warn" and isinstance(call.func, ast.Attribute) and _last(call.func.value) == "warnings":
        return "UserWarning"
    owned = isinstance(call.func, ast.Attribute) and _LOGGER.search(_last(call.func.value))
    return LEVELS.get(name, "") if owned or _BARE.fullmatch(name) else ""


def _called(call: ast.Call, how: str, names: Names) -> Iterator[Said]:
    texts = (_text(argument, names, call.args[number + 1 :]) for number, argument in enumerate(call.args[:2]))
    yield from _one(call.lineno, how, next((text for text in texts if text), ""))


def _one(line: int, how: str, text: str) -> Iterator[Said]:
    if how and len(regex.sub(r"word-7|\W|\d", "", text)) >= _SHORTEST:
        yield Said(line, how, text)


def _of_class(node: ast.ClassDef) -> Iterator[Said]:
    """Yield an exception class's own texts: its `fmt`, its `__str__`, its call of the base class."""
    for one in ast.walk(node):
        if isinstance(one, ast.Assign) and [_last(target) for target in one.targets] == ["fmt"]:
            yield from _one(one.lineno, node.name, _text(one.value, {}))
        elif isinstance(one, ast.FunctionDef) and one.name == "__str__":
            for part in ast.walk(one):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield from _one(part.lineno, node.name, _text(part.value, {}))
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "__init__":
            yield from _called(one, node.name, {})


def _last(node: ast.expr) -> str:
    """Return the last name of an expression: `b` of `a.b` and of `a.b()`."""
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr, names: Names, given: list[ast.expr] | None = None) -> str:
    """Return a string expression's text with plausible values; "" without a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return filled(node.value, [ast.unparse(one) for one in given or []])
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], {name: value for name, value in names.items() if name != node.id}, given)
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, names), _text(node.right, names)
        return f"{left or _value(node.left)}{right or _value(node.right)}" if left or right else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _text(node.left, names, node.right.elts if isinstance(node.right, ast.Tuple) else [node.right])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("format", "strip"):
            return _text(node.func.value, names, node.args)
    if isinstance(node, ast.IfExp):
        return _text(node.body, names)
    return ""


def _part(part: ast.expr) -> str:
    return _value(part.value) if isinstance(part, ast.FormattedValue) else str(getattr(part, "value", ""))


def _value(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else value_of(ast.unparse(node))
