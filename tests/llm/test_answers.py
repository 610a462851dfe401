"""From what models write to typed answers."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import ModelNonsense
from logdoctor.learning.filters.model import Patterns, Votes, WrittenPattern
from logdoctor.llm.answers import MAX_ANSWER, parse, schema

A = WrittenPattern(r"^a \d+$", "counts", [1, 2])
ONE = r'{"patterns": [{"pattern": "^a \\d+$", "what": "counts", "lines": [1, 2]}], "errors": [7]}'


@pytest.mark.parametrize(
    "text",
    [
        ONE,
        f"```json\n{ONE}\n```",
        f"```\n{ONE}\n```\nI hope that helps.",
        f"Sure! Of the {{3}} groups and [1] I wrote:\n\n```json\n{ONE}\n```",
        f"Here it is: {ONE} Tell me if you need more.",
        f"<think>Maybe {{this}} or [that]</think>\n{ONE}",
        r'{"patterns": [{"pattern": "^a \d+$", "what": "counts", "lines": [1, 2,],},], "errors": [7,],}',
        r'{"patterns": [{"pattern": "^a \\d+$", "what": "counts", "lines": ["1", 2], "x": 1}], "errors": [7], "y": {}}',
        "\ufeff" + ONE,
        ONE.replace(" ", "\n"  "\t").replace("\"^a\n\t", '"^a '),
    ],
)  # fmt: skip
def test_json_as_models_write_it(text: str) -> None:
    assert parse(text, Patterns) == (Patterns([A], [7]), False)


def test_backslashes_that_were_not_doubled_are() -> None:
    text = r'{"patterns": [{"pattern": "^\[x\] \d+\.\d+ \"q\" \\d é\/$"}]}'
    assert parse(text, Patterns).value.patterns[0].pattern == r'^\[x\] \d+\.\d+ "q" \d é/$'


@given(st.integers(0, len(ONE) - 1))
def test_an_answer_cut_off_anywhere_gives_whole_items_or_is_refused(end: int) -> None:
    text = '{"patterns": [' + ", ".join(json.dumps({"pattern": f"^{i}$", "lines": [i, i]}) for i in range(3))
    text = text[: end % len(text)]
    try:
        parsed = parse(text, Patterns)
    except ModelNonsense:
        assert text.count("}") == 0
    else:
        assert parsed.cut
        assert parsed.value.patterns == [WrittenPattern(f"^{i}$", "", [i, i]) for i in range(text.count("}"))]


def test_a_cut_list_of_numbers_keeps_those_behind_which_a_comma_stands() -> None:
    assert parse('{"patterns": [], "errors": [1, 23, 4', Patterns) == (Patterns([], [1, 23]), True)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "is empty"),
        ("<think>and then I", "is empty"),
        ("I have no idea", "is not JSON"),
        ("I'm sorry, but I can't help with that.", "is a refusal"),
        ("I cannot write expressions that hide errors.", "is a refusal"),
        ('{"patterns": "^a$"}', "Expected `array`, got `str`"),
        ('{"errors": [1]}', "missing required field `patterns`"),
        ('{"patterns": [{"pattern": 7}]}', "Expected `str`"),
        ('{"patterns": [], "errors": [NaN]}', "NaN is no value"),
        ('{"patterns": [], "errors": [1e999]}', "Expected `int`"),
        ('{"patterns": [], "patterns": []}', "'patterns' stands there twice"),
        ('{"patterns": [}', "closed by }"),
        ('[{"pattern": "^a$"}]', "Expected `object`, got `array`"),
        ("{" * 100, "nested deeper"),
        ('{"patterns": [{"pattern": "^a', "cut off before"),
        ('{"patterns": [], "errors": [' + "9" * 5000 + "]}", "Exceeds the limit"),
        ("x" * (MAX_ANSWER + 1), "characters"),
    ],
)
def test_what_is_refused_and_why(text: str, cause: str) -> None:
    with pytest.raises(ModelNonsense, match=cause):
        parse(text, Patterns)


def test_a_vote_is_one_of_two_words() -> None:
    with pytest.raises(ModelNonsense, match="Invalid enum value"):
        parse('{"votes": [{"candidate": 1, "vote": "maybe"}]}', Votes)


@pytest.mark.parametrize(
    "unit", ["[", "{", '{"a":', "[1],", '{"a":1,"a":1}', '"', '\\"', "```{", "{,", ",", "<think>", "\\"]
)
def test_hostile_text_takes_little_time(unit: str) -> None:
    for text in (unit * (MAX_ANSWER // len(unit)), "{" + unit * ((MAX_ANSWER - 1) // len(unit)), unit * (10 << 20)):
        begin = time.process_time()
        with pytest.raises(ModelNonsense):
            parse(text, Patterns)
        assert time.process_time() - begin < 5


@given(st.text(alphabet='{}[]",:\\ 1anpterus`', max_size=200))
def test_any_text_parses_or_is_nonsense(text: str) -> None:
    try:
        parse('{"patterns":' + text, Patterns)
    except ModelNonsense:
        pass


_JSON: Any = st.builds(
    lambda patterns, errors: {"patterns": patterns, "errors": errors},
    st.lists(st.fixed_dictionaries({"pattern": st.text(), "what": st.text(), "lines": st.lists(st.integers(0, 999))})),
    st.lists(st.integers(-(2**60), 2**60)),
)


@given(_JSON, st.text(alphabet=st.characters(exclude_characters="[{"), max_size=30))
def test_good_json_comes_as_it_is_whatever_stands_around(data: dict[str, Any], prose: str) -> None:
    parsed = parse(f"{prose.replace('<', '')}{json.dumps(data)}{prose}", Patterns)
    assert json.loads(json.dumps(data)) == {
        "patterns": [{"pattern": p.pattern, "what": p.what, "lines": p.lines} for p in parsed.value.patterns],
        "errors": parsed.value.errors,
    }
    assert not parsed.cut


def test_a_schema_is_closed_and_holds_no_reference() -> None:
    found = schema(Votes)
    assert found["title"] == "Votes" and "$ref" not in json.dumps(found)
    item = found["properties"]["votes"]["items"]
    assert item["required"] == ["candidate", "vote", "why"] and item["additionalProperties"] is False
