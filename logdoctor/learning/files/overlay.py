"""A rule book that is not live yet: the current rules overlaid with the rule files of another folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logdoctor.errors import RuleError

_KINDS = ("filter", "diagnosis", "override")


@contextmanager
def laid_over(rules: Path, folder: Path) -> Iterator[Path]:
    """Yield a folder with the rules, overlaid with another folder's, which win. `RuleError` when that has no folder
    `filter`, `diagnosis` or `override`, or cannot be read."""
    kinds = [kind for kind in _KINDS if (folder / kind).is_dir()]
    if not kinds:
        cause = "has no folder `filter`, `diagnosis` or `override`"
        raise RuleError(str(folder), cause, "Name a folder like that of the rules, or of `logdoctor rules export`.")
    with tempfile.TemporaryDirectory(prefix="logdoctor-rules-") as whole:
        try:
            shutil.copytree(rules, whole, dirs_exist_ok=True)
            for kind in kinds:
                shutil.copytree(folder / kind, Path(whole, kind), dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            cause = f"cannot be read ({str(error)[:200]})"
            raise RuleError(str(folder), cause, "Check its files and their permissions.") from error
        yield Path(whole)
