"""What is set is used, what cannot be is an error, and docs/settings.md lists all of it."""

from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from logdoctor import wiring
from logdoctor.errors import SettingsError
from logdoctor.pipeline import ReadLimits
from logdoctor.settings import SECTIONS, Settings, cache_folder, read_settings, rules_folder, table

DOCUMENT = Path(__file__).parents[1] / "docs" / "settings.md"


def test_nothing_set_means_the_defaults() -> None:
    assert read_settings({"PATH": "/bin", "LOGDOCTORX": "1"}) == Settings()


def test_every_setting_can_be_set() -> None:
    for name, kind in get_type_hints(Settings).items():
        default = getattr(Settings(), name)
        value = Path("/x") if kind == Path | None else get_args(kind)[-1] if get_args(kind) else default + kind("1")
        value = (Path("/x"),) if kind == tuple[Path, ...] else value
        value = default / 2 if kind is float and 0 < default < 1 else value  # a share
        given = str(*value) if isinstance(value, tuple) else str(value)
        read = read_settings({f"LOGDOCTOR_{name.upper()}": given})
        assert read == msgspec.structs.replace(Settings(), **{name: value}), name
    assert {row.name for row in table()} == {f"LOGDOCTOR_{name.upper()}" for name in Settings.__struct_fields__}
    assert read_settings({"LOGDOCTOR_CACHE_DIR": "~/c"}).cache_dir == Path("~/c").expanduser()


@pytest.mark.parametrize("variable", ["LOGDOCTOR_WORKER", "LOGDOCTOR_", "LOGDOCTOR_RULES_"])
def test_an_unknown_variable_is_named(variable: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{variable} is not a setting"):
        read_settings({variable: "1"})


def test_what_was_meant_or_may_be_chosen_is_named() -> None:
    with pytest.raises(SettingsError, match=r"Did you mean LOGDOCTOR_PORT\?"):
        read_settings({"LOGDOCTOR_PROT": "1"})
    with pytest.raises(SettingsError, match=r"'maybe' that is not valid \(not one of auto, on\)"):
        read_settings({"LOGDOCTOR_AUTH": "maybe"})


def test_the_variables_of_shell_completion_are_not_ours() -> None:
    assert read_settings({"_LOGDOCTOR_COMPLETE": "bash_source", "LOGDOCTOR_COMPLETE": "x"}) == Settings()


@pytest.mark.parametrize("name", ["workers", "block_bytes", "max_decompressed_bytes", "max_expansion"])
@pytest.mark.parametrize("value", ["many", "", "1.5", "-1", "0x10", "1e400"])
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({f"LOGDOCTOR_{name.upper()}": value})
    assert name in str(caught.value).lower()
    assert caught.value.next_step


@pytest.mark.parametrize(("value", "good"), [(65535, False), (65536, True), (1 << 26, True), ((1 << 26) + 1, False)])
def test_block_bytes_have_bounds(value: int, good: bool) -> None:
    given = {"LOGDOCTOR_BLOCK_BYTES": str(value)}
    if good:
        assert read_settings(given).block_bytes == value
    else:
        with pytest.raises(SettingsError, match=r"is not valid \(Expected `int`"):
            read_settings(given)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDOCTOR_WORKERS", "5")
    assert read_settings().workers == 5


def test_the_document_lists_every_setting_with_its_default_and_meaning() -> None:
    rows = [
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `LOGDOCTOR_") and line.count("|") == 4
    ]
    wanted = [(row.name, row.default, row.meaning.strip(" `")) for row in table()]
    assert rows == wanted and all(meaning for _, _, meaning in wanted)


def test_the_document_has_the_sections_of_the_code() -> None:
    sections = [line[3:] for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert sections[1:] == list(SECTIONS.values())
    assert all(row.meaning for row in table())


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules_folder(Settings(rules=tmp_path)) == tmp_path
    assert (rules_folder(Settings()) / "filter").is_dir()
    assert cache_folder(Settings(cache_dir=tmp_path)) == tmp_path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(Settings()) == tmp_path / "logdoctor"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder(Settings()) == Path.home() / ".cache" / "logdoctor"


def test_limits_come_from_settings() -> None:
    assert wiring.limits(Settings(None, None, 3, 70_000, 5, 7)) == ReadLimits(70_000, 3, 5, 7)
