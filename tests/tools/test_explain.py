"""`./gym explain`: from a log to its cause."""

import io

from pypto_gym.tools import explain
from pypto_gym.tools.harness import cli

# A failure as 0.2.0 prints it: the cause comes first, and what ends the traceback follows from it.
LOG = """
ERROR:root:Record function kernel failed: AttributeError: 'Tensor' object has no attribute 'T'
INTERNAL BUG block.py:1:0: Errcode: F21004!
op [ADD]tile shape not set, func Operation, file operation.cpp, line 184
pypto.frontend.parser.error.RenderedParserError: Errcode: F21004!
"""


def test_the_cause_comes_before_what_follows_from_it():
    first, second = explain.find(LOG)
    assert first[0] == "'Tensor' object has no attribute 'T'" and first[1].page == "python-operators.md"
    assert second[1].consequence and "tile shape not set" in second[0]


def test_a_consequence_comes_last_even_where_it_is_printed_first():
    log = "Run pass failed., func CompileFunction\n[ERROR] Alloc tensor [9] size [262144] exceeds MEM_UB size [196608]!"
    assert [s.page for _, s in explain.find(log)] == ["tile-shapes.md", "tile-shapes.md"]
    assert "unified buffer" in explain.find(log)[0][1].cause


def test_a_code_alone_lists_all_its_causes(capsys):
    assert cli.main(["explain", "f21007"]) == 0
    out = capsys.readouterr().out
    assert "both views and assembles" in out and "same idx_name" in out
    assert "page:  cannbot-skills/ops/pypto-general-debug/pypto-view.md" in out


def test_a_code_without_a_signature_names_its_component(capsys):
    assert cli.main(["explain", "FC3001"]) == 0
    assert "FC3001: checks of matmul" in capsys.readouterr().out


def test_a_log_is_read_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(LOG))
    assert cli.main(["explain"]) == 0
    assert capsys.readouterr().out.startswith("'Tensor' object has no attribute 'T'\ncause: ")


def test_what_is_unknown_is_said_to_be(capsys):
    assert cli.main(["explain", "the moon is full"]) == 1
    assert "nothing is known about this" in capsys.readouterr().out


def test_more_than_three_need_all(capsys):
    assert cli.main(["explain", "F21004"]) == 0
    assert "--all shows them" in capsys.readouterr().out
    assert cli.main(["explain", "F21004", "--all"]) == 0
    assert "--all" not in capsys.readouterr().out


def test_a_failed_case_is_explained_by_its_cause_alone():
    noise = "[ERROR][VERIFY]:ErrCode: FB4001! tensor_graph Verify for 2 data view list index 1 result FAILED\n"
    assert explain.likeliest("o: contract: 3 of 100 elements are further from the golden", noise) is None
    lost = noise + "setStorage: sizes [16, 64], strides [64, 1] are out of bounds for storage of size 6144\n"
    known = explain.likeliest("compiler pass InferDynShape: 1 EXCEPTION of 4 compared results", lost)
    assert "valid shape was lost" in known.cause
    assert "tile shape" in explain.likeliest("the kernel was refused: op [ADD]tile shape not set", noise).cause


def test_a_failed_case_says_what_is_known(sample):
    from pypto_gym.tools.harness import cases, report
    from pypto_gym.tools.harness.runner import Settings, run_case
    from rich.console import Console

    result = run_case(sample, cases.find(sample, "R64"), "refused", Settings(backend="sim"))
    console = Console(record=True, width=200)
    report.show(console, result, sample)
    text = console.export_text()
    assert "cause: An operation before any tile shape was set." in text
    assert "page:  cannbot-skills/ops/pypto-general-debug/tile-shapes.md" in text
