"""cases.yaml: what is read, and what the user is told when it is wrong."""

from pathlib import Path

import pytest

from pypto_gym.tools.harness import cases
from pypto_gym.tools.harness.cases import CaseError

PATH = Path("ops/x/cases.yaml")


def parse(text, sample):
    return cases.parse(text, PATH, sample)


def test_a_row_gets_the_defaults_and_a_seed_of_its_own(sample):
    one, two = parse("defaults: {rows: 8}\ncases:\n  - {id: a}\n  - {id: b, rows: 9, tier: full, seed: 7}\n", sample)
    assert (one.params, one.tier, one.line) == ({"rows": 8}, "quick", 3)
    assert (two.params, two.tier, two.seed) == ({"rows": 9}, "full", 7)
    assert one.seed == parse("cases: [{id: a, rows: 8}]", sample)[0].seed


@pytest.mark.parametrize(
    "text, message",
    [
        ("cases: [{id: a, rows: 8", "ops/x/cases.yaml:1: not YAML"),
        ("cases:\n  - {id: a, rows: 8}\n  - {id: b, row: 8}", "ops/x/cases.yaml:3: row: unknown key; scale_add takes id,"),
        ("cases:\n  - {id: a, rows: many}", "ops/x/cases.yaml:2: rows: got 'many', takes int"),
        ("cases:\n  - {id: a, rows: true}", "ops/x/cases.yaml:2: rows: got True, takes int"),
        ("cases:\n  - {rows: 8}", "ops/x/cases.yaml:2: id: missing"),
        ("cases:\n  - {id: a}", "ops/x/cases.yaml:2: rows: missing in case 'a'"),
        ("cases:\n  - {id: a, rows: 8}\n  - {id: a, rows: 9}", "ops/x/cases.yaml:3: id: 'a' stands already in line 2"),
        ("cases:\n  - {id: a, rows: 8, rows: 9}", "ops/x/cases.yaml:2: rows: given twice"),
        ("cases:\n  - {id: a, rows: 8, tier: slow}", "ops/x/cases.yaml:2: tier: got 'slow', takes quick or full"),
        ("cases:\n  - {id: a, rows: 8, impls: [a5]}", "ops/x/cases.yaml:2: impls: got 'a5', scale_add has general"),
        ("default: {}\ncases: []", "ops/x/cases.yaml:1: default: unknown key"),
        ("defaults: {rows: 8}", "ops/x/cases.yaml:1: cases: missing"),
        ("cases: 8", "ops/x/cases.yaml:1: cases: got '8', takes a list of rows"),
        ("", "ops/x/cases.yaml:1: the file: got nothing, takes a mapping"),
    ],
)
def test_errors_name_file_line_and_key(text, message, sample):
    with pytest.raises(CaseError) as error:
        parse(text, sample)
    assert str(error.value).startswith(message)


def test_lists_and_optional_keys(sample):
    import dataclasses

    operator = dataclasses.replace(sample, params={"lens": list[int], "scale": float | None})
    (case,) = parse("cases: [{id: a, lens: [1, 2]}]", operator)
    assert case.params == {"lens": [1, 2], "scale": None}
    with pytest.raises(CaseError, match=r"lens: got \[1, 'x'\], takes list\[int\]"):
        parse("cases: [{id: a, lens: [1, x]}]", operator)


def test_an_unknown_case_is_answered_with_those_there_are(sample):
    with pytest.raises(CaseError, match="scale_add has no case 'R1'; it has R64, R75"):
        cases.find(sample, "R1")
