"""What is generated into README files is up to date."""

import pytest

from pypto_gym.tools.harness import overview, registry
from pypto_gym.tools.harness.cli import ROOT
from pypto_gym.tools.perf.record import Record, with_table


@pytest.mark.parametrize("name", overview.READMES)
def test_the_operator_table_is_made_from_the_records(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == overview.rewritten(text), "stale: run ./gym list --update-readme"


@pytest.mark.parametrize("name", sorted(registry.names()))
def test_perf_tables_show_what_is_on_record(name):
    operator = registry.load(name)
    text = (operator.folder / "README.md").read_text(encoding="utf-8")
    assert text == with_table(text, Record(operator).table()), f"stale: run ./gym perf {name} --update"
    assert "<!-- perf:begin -->" in text
