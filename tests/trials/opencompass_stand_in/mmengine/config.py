"""Stands in for mmengine: settings that are Python files."""

from pathlib import Path
from typing import Any


class Config(dict[str, Any]):
    """Settings by their names."""

    def __init__(self, values: dict[str, Any], format_python_code: bool = True) -> None:
        super().__init__(values)

    def dump(self, path: str) -> None:
        Path(path).write_text("".join(f"{name} = {value!r}\n" for name, value in self.items()), encoding="utf-8")

    @staticmethod
    def fromfile(path: str, format_python_code: bool = True) -> "Config":
        if not Path(path).is_file():
            raise FileNotFoundError(f'file "{path}" does not exist')
        values: dict[str, Any] = {}
        exec(Path(path).read_text(encoding="utf-8"), values)
        return Config({name: value for name, value in values.items() if not name.startswith("__")})
