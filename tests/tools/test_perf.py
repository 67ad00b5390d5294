"""Simulated time: measured without numbers, put beside the roofline, and a regression is caught."""

import dataclasses

import pytest
import torch

from pypto_gym.tools.harness import Work, cases
from pypto_gym.tools.harness.backends.figures import CYCLES_PER_US
from pypto_gym.tools.perf import measure, roofline
from pypto_gym.tools.perf.record import Record, regression, update, with_table


@pytest.fixture
def row(sample):
    return measure.measure(sample, cases.find(sample, "R64"), "general", 4 << 30)


def test_a_measurement_repeats_and_has_all_figures(sample, row):
    again = measure.measure(sample, cases.find(sample, "R64"), "general", 4 << 30)
    assert row.cycles == again.cycles > 1000
    assert row.us == pytest.approx(row.cycles / CYCLES_PER_US, abs=0.05)
    assert row.tasks == 4 and 0 < row.utilisation < 100


def test_the_cost_model_without_a_figure_is_said(sample):
    with pytest.raises(RuntimeError, match="scale_add R64 raises: the kernel raised ValueError"):
        measure.measure(sample, cases.find(sample, "R64"), "raises", 4 << 30)


def test_a_regression_is_a_sentence_and_noise_is_not(row):
    slower = dataclasses.replace(row, cycles=round(row.cycles * 1.05))
    assert regression(slower, row).startswith("R64 general: ") and "5.0 % more than" in regression(slower, row)
    assert regression(row, slower) == regression(row, row) == ""


def test_the_record_survives_writing(sample, row, tmp_path, monkeypatch):
    operator = dataclasses.replace(sample, file=str(tmp_path / "scale_add" / "scale_add.py"))
    operator.folder.mkdir()
    (operator.folder / "README.md").write_text("# x\n<!-- perf:begin -->\nold\n<!-- perf:end -->\nend\n")
    record = Record(operator)
    record.put(row)
    record.peers.append({"case": "R64", "what": "another kernel", "us": 9.5})
    record.write()
    assert Record(operator).find("R64", "general", row.release) == row
    text = (operator.folder / "README.md").read_text()
    assert "old" not in text and "another kernel" in text and text.endswith("end\n")
    assert with_table(text, Record(operator).table()) == text


def test_two_that_put_on_record_at_once_keep_both_rows(sample, row, tmp_path):
    operator = dataclasses.replace(sample, file=str(tmp_path / "scale_add" / "scale_add.py"))
    operator.folder.mkdir()
    (operator.folder / "cases.yaml").write_text("cases: []\n")
    before = Record(operator)  # what a second process has read
    update(operator, row)
    update(operator, dataclasses.replace(row, impl="a3"))
    assert not before.rows and [r.impl for r in Record(operator).rows] == ["general", "a3"]


def test_the_roofline_is_the_longer_of_products_and_traffic():
    work = Work(cube_flops=2 * 4096**3, bytes=0)
    assert roofline.microseconds(work) == pytest.approx(2 * 4096**3 / (24 * 8192 * 1800))
    assert roofline.microseconds(dataclasses.replace(work, dtype=torch.float32)) == 2 * roofline.microseconds(work)
    assert (roofline.bound(work), roofline.bound(Work(1, 1 << 30))) == ("cube", "memory")
