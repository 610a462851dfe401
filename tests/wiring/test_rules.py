"""A folder of rules is checked against what is known to pass: the shipped rules, or the last that passed."""

import shutil
from pathlib import Path

import pytest

from logdoctor import wiring
from logdoctor.errors import RuleError
from logdoctor.rules import check as checking
from logdoctor.settings import Settings, read_settings
from tests.rules.books import diagnosis, filter_rule, write_rules


def test_of_a_folder_what_differs_from_the_shipped_rules_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = write_rules(
        tmp_path / "shipped", filter_rule("zz/old", "all is well"), diagnosis("zz/ecc", "uncorrectable ECC")
    )
    monkeypatch.setattr(wiring, "rules_folder", lambda settings: settings.rules or shipped)
    shutil.copytree(shipped, tmp_path / "rules")
    settings = Settings(rules=tmp_path / "rules", cache_dir=tmp_path / "cache")
    checked: list[str] = []
    form = checking._form
    monkeypatch.setattr(checking, "_form", lambda rule, scanner: checked.append(rule.id) or form(rule, scanner))
    wiring.scanner(settings)
    assert checked == []
    write_rules(tmp_path / "rules", filter_rule("zz/mine", "flux is stable"))
    assert wiring.scanner(settings).book.rule("filter/zz/mine") and checked == ["filter/zz/mine"]
    wiring.scanner(settings)
    assert checked == ["filter/zz/mine"]
    write_rules(tmp_path / "rules", filter_rule("zz/bad", "uncorrectable ECC"))
    for _ in range(2):
        with pytest.raises(RuleError, match="is evidence"):
            wiring.scanner(settings)


def test_more_rules_are_checked_and_used_beside_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = write_rules(tmp_path / "shipped", filter_rule("zz/old", "all is well"), diagnosis("zz/ecc", "bad ECC"))
    monkeypatch.setattr(wiring, "rules_folder", lambda settings: shipped)
    mine = write_rules(tmp_path / "mine", diagnosis("zz/mine", "flux is gone"))
    given = read_settings({"LOGDOCTOR_MORE_RULES": f"{mine}:", "LOGDOCTOR_CACHE_DIR": str(tmp_path / "cache")})
    book = wiring.scanner(given).book
    assert [rule.id for rule in book.diagnoses] == ["diagnosis/zz/ecc", "diagnosis/zz/mine"] and book.filters
    write_rules(mine, filter_rule("zz/bad", "bad ECC"))
    with pytest.raises(RuleError, match="is evidence"):
        wiring.scanner(given)
