"""Refuse phrases that nobody says aloud, in the code's docstrings, comments and messages, and on its pages.

`python tests/phrases.py` prints each place and exits with 1 if there is one. CONTRIBUTING.md has the verbs to use.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("logdoctor/**/*.py", "logdoctor/web/templates/*.html")
PHRASES = {
    r"(?<!one )(?<!some )(?<!none )(?<!all )(?<!each )(?<!parts )\bof (?:which|whom)\b": "a relative clause",
    r"\bcounts? no more\b": "is withdrawn, is ignored",
    r"\bfor so long\b": "for `seconds`",
    r"\bwhat (?:came|comes|became|becomes) of\b": "the result of",
    r"\bwhose it is\b": "its owner",
    r"\bthat is none\b": "an invalid one",
}


def found(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each such phrase, and what to say instead."""
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase, text):
            yield text.count("\n", 0, match.start()) + 1, f"{match.group()!r}: say {instead}"


def main() -> int:
    """Print all places; return the exit code."""
    places = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for pattern in PLACES
        for path in sorted(ROOT.glob(pattern))
        for line, why in sorted(found(path.read_text(encoding="utf-8")))
    ]
    print("\n".join(places) or "no phrase that nobody says")
    return bool(places)


if __name__ == "__main__":
    sys.exit(main())
