"""chunkwise/files/strict_json.py: what Python's json takes and a dataset must not hold."""

import json
import re
from pathlib import Path

import pytest

from chunkwise.errors import DataError
from chunkwise.files import budget, strict_json
from chunkwise.files.strict_json import parse_json, read_json, read_json_lines


def test_ordinary_json_is_read_as_it_is() -> None:
    assert parse_json('{"a": [1, 2.5, null, "x"], "b": {"c": true}}', source="f") == {
        "a": [1, 2.5, None, "x"],
        "b": {"c": True},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"state": {"mean": [1.0, NaN]}}', "NaN at key 'mean'"),
        ('{"fps": Infinity}', "Infinity at key 'fps'"),
        ('{"fps": 1e999}', "1e999"),
        ('{"fps": 10, "fps": 20}', "'fps' twice"),
        ('{"fps": 10', "expected JSON, found"),
        ("[" * 100_000, "nesting too deep"),
        ("[NaN]", "NaN at the top level"),
        ('{"a":' * 700 + "1" + "}" * 700, "--data.limits.json-depth"),
        ('{"n": ' + "9" * 5000 + "}", "an integer of 5000 digits"),
    ],
)
def test_what_is_refused_names_file_and_key(text: str, words: str) -> None:
    with pytest.raises(DataError, match=r"info\.json") as error:
        parse_json(text, source="info.json")
    assert words in str(error.value)


def test_files_and_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": NaN}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 3"):
        read_json_lines(tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DataError, match="UTF-8"):
        read_json(tmp_path / "latin.json")


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\x85d\x1ee", "f"]
    lines = [f'{{"task": "{text}"}}' for text in texts[:1]] + [f'["{texts[1]}"]'.replace("\x1e", "\\u001e")]
    (tmp_path / "rows.jsonl").write_bytes("\n".join([*lines, '["f"]\r', ""]).encode())
    assert read_json_lines(tmp_path / "rows.jsonl") == [{"task": texts[0]}, [texts[1]], ["f"]]


def test_numbers_that_are_not_finite_where_they_are_allowed() -> None:
    assert parse_json('[Infinity, {"a": -Infinity}, 1e999]', source="f", finite=False) == [
        float("inf"),
        {"a": -float("inf")},
        float("inf"),
    ]
    with pytest.raises(DataError, match="'a' twice"):
        parse_json('{"a": NaN, "a": 1}', source="f", finite=False)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (r'{"a": [{"name": "\ud800.jpg"}]}', r"at 'name': '\ud800.jpg'"),
        (r'{"a": {"\udfff": 1}}', r"in the key '\udfff' of 'a'"),
        (r'["\uDe00\ud83d"]', r"at 'the top level': '\ude00\ud83d'"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_key(text: str, where: str):
    with pytest.raises(DataError, match=f"s: expected text of whole characters.*{re.escape(where)}"):
        parse_json(text, source="s")


def test_whole_pairs_and_written_backslashes_are_read():
    assert parse_json(r'{"\ud83d\ude00": "\\ud800"}', source="s") == {"😀": r"\ud800"}


DEEP = budget.LIMITS.json_depth


@pytest.mark.parametrize(
    "text",
    [
        *("[" * depth + "]" * depth for depth in (DEEP - 1, DEEP, DEEP + 1)),
        *('{"a":' * depth + "[]" + "}" * depth for depth in (DEEP - 1, DEEP)),
        *("[" * depth + '"]"' + "]" * depth for depth in (DEEP, DEEP + 1)),
        *("[" * depth + rf'"{text}"' + "]" * depth for depth in (DEEP, DEEP + 1) for text in (r"\\", r"\"", r"]\\\"[")),
        r'["\\","]","\\\"[", {"\\\\": "}"}, "]["]',
        *(f"[{number}]" for number in ("1e308", "1e309", "1E+309", "-1e0400", "1e-999", "0e999")),
        *(f"[{'9' * 300}{end}]" for end in ("", ".0", ".0e8", "e9", ".5e99", "e-200")),
        *(f"[{'9' * count}]" for count in (199, 200, 4000, 4001)),
        '[{"a": [NaN]}, [[Infinity]]]',
        '[[[-Infinity]], {"b": NaN}]',
        '{"a": NaN, "a": 1}',
        '"NaN"',
        "-Infinity",
    ],
)
@pytest.mark.parametrize("finite", [True, False])
def test_what_is_told_from_the_text_is_what_the_values_say(
    monkeypatch: pytest.MonkeyPatch, text: str, finite: bool
) -> None:
    def read() -> str:
        try:
            return repr(parse_json(text, source="f", finite=finite))
        except DataError as error:
            return f"{type(error).__name__}: {error}"

    quick = read()
    monkeypatch.setattr(strict_json, "_is_shallow", lambda text: False)
    monkeypatch.setattr(strict_json, "_may_be_large", lambda text: True)
    assert quick == read()


@pytest.mark.parametrize("text", ['{"a": [1.5, {"b": "c"}], "d": []}', r'[["\\"], "\"", "ü"]', "[" * DEEP + "]" * DEEP])
def test_values_of_ordinary_json_are_not_searched(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(strict_json, "_first_constant", None)
    assert parse_json(text, source="f") == json.loads(text)
