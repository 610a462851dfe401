"""YAML is texts, lists and mappings, and nothing that grows when it is read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from logdoctor.safe.plain_yaml import NotPlain, document, documents

SHIPPED = sorted((Path(__file__).parents[1] / "rules").rglob("*.y*ml"))


def as_texts(value: Any) -> Any:
    """What YAML's own types were written as, in rules: dates and yes."""
    if isinstance(value, dict):
        return {str(name): as_texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [as_texts(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def test_shipped_rules_are_what_the_loader_of_yaml_makes_of_them() -> None:
    assert len(SHIPPED) > 100
    for path in SHIPPED[::10]:
        text = path.read_text(encoding="utf-8")
        assert document(text) == as_texts(yaml.safe_load(text)), path


def test_what_has_a_type_in_yaml_is_a_text_and_nothing_is_none() -> None:
    text = "a: 1:2:3\nb: 2026-01-01\nNO: yes\n1: 0x1f\nc:\nd: ~\ne: ''\nf: 'null'\ng: [1.5, null]\n"
    assert document(text) == {
        **{"a": "1:2:3", "b": "2026-01-01", "NO": "yes", "1": "0x1f"},
        **{"c": None, "d": None, "e": "", "f": "null", "g": ["1.5", None]},
    }


def test_keys_that_were_one_to_a_hash_are_texts() -> None:
    """As numbers, 60,000 multiples of 2^61-1 take half a minute: each is compared with all before."""
    keys = [str(number * ((1 << 61) - 1)) for number in range(5_000)]
    found = document("\n".join(f"{key}: x" for key in keys))
    assert list(found) == keys


def test_documents_are_told_apart() -> None:
    assert list(documents("---\na: 1\n---\n---\n[b]\n")) == [{"a": "1"}, None, ["b"]]
    assert document("") is None and list(documents("# nothing")) == []
    with pytest.raises(NotPlain, match="more than one document"):
        document("a\n---\nb\n")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: &a [x]\nb: *a", "alias"),
        ("!!python/object/apply:os.system ['true']", "tag"),
        ("a: !!int 3", "tag"),
        ("[" * 100_000, "nested too deeply"),
        ("{a: " * 100_000, "nested too deeply"),
        ("? " * 100_000 + "x", "nested too deeply"),
        ("- " * 100_000 + "x", "nested too deeply"),
        ("[" + "a," * 300 + "]", "more than 200 parts"),
        ("---\n" * 300, "more than 200 parts"),
        ("? [a]\n: b", "a name in it is no text"),
        ("~: b", "a name in it is no text"),
        ("a: [", "while parsing"),
        ("a: \x00", "control characters"),
        ("a: \ud800", "no Unicode"),
    ],
)
def test_what_is_not_plain_is_refused(text: str, cause: str) -> None:
    with pytest.raises(NotPlain, match=cause) as caught:
        list(documents(text, most=200))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["%TAG !a! b\n--- x\n", "a: 1\n%YAML 1.1\n--- x\n", "\ufeff%TAG !a! b\n--- x\n"])
def test_a_directive_is_refused_before_the_parser_sees_it(text: str) -> None:
    with pytest.raises(NotPlain, match="directive"):
        document(text)
    assert document("a: |\n  % of all\n") == {"a": "% of all\n"}
