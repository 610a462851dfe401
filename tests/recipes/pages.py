"""The code that a page of the documentation shows."""

import re
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"


def block(page: str, language: str, changes: dict[str, str], number: int = 0) -> str:
    """The code of a page, with other names, counts and addresses; those of the page must be there."""
    text = (RECIPES / page).read_text(encoding="utf-8")
    code: str = re.findall(rf"^```{language}\n(.*?)^```$", text, re.S | re.M)[number]
    for old, new in changes.items():
        assert old in code, f"the recipe has no {old}"
        code = code.replace(old, new)
    return code
