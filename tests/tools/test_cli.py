"""The command line: what it prints, and how it ends."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pypto_gym.tools.harness import cli


def test_run_reports_json_lines_and_a_page(sample, tmp_path, capsys):
    json_path, html_path = tmp_path / "r.jsonl", tmp_path / "r.html"
    code = cli.main(["run", "scale_add", "--impl", "general", "--impl", "half", "--json", str(json_path), "--html", str(html_path)])
    assert code == 1
    printed = capsys.readouterr().out
    assert "PASS sample/scale_add R64 · general" in printed and "1 PASS, 1 FAIL, 0 NOT-RUN" in printed
    assert "again: ./gym run scale_add --case R64 --impl half --backend sim" in printed
    first, second = map(json.loads, json_path.read_text().splitlines())
    assert (first["status"], second["status"]) == ("PASS", "FAIL")
    assert first["run"]["cycles"] > 0 and first["outputs"][0]["name"] == "y"
    assert "scale_add" in html_path.read_text()


def test_list_shows_what_ran_where(sample, capsys):
    assert cli.main(["list", "scale_add"]) == 0
    printed = capsys.readouterr().out
    assert "R75" in printed and "general" in printed and "last on npu" in printed


def test_the_operators_own_command_line(sample, capsys):
    assert sample.main(["--case", "R64", "--impl", "host"]) == 0
    assert "scale_add R64 · host" in capsys.readouterr().out
    assert sample.main(["--list"]) == 0


def test_show_draws_where_it_is_wrong(sample, tmp_path):
    path = tmp_path / "errors.png"
    assert cli.main(["show", "scale_add", "--impl", "half", "--png", str(path)]) == 1
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "command, sentence",
    [
        (["run", "no_such_op"], "gym: there is no operator 'no_such_op'; there are "),
        (["run", "scale_add", "--case", "R1"], "gym: scale_add has no case 'R1'; it has R64, R75"),
        (["run", "scale_add", "--impl", "a9"], "gym: --impl: scale_add has no implementation 'a9'; it has general"),
    ],
)
def test_a_users_mistake_is_one_sentence(sample, command, sentence, capsys):
    assert cli.main(command) == 2
    err = capsys.readouterr().err
    assert err.startswith(sentence) and err.count("\n") == 1


def test_devices():
    assert cli.parse_devices("0-2,5") == [0, 1, 2, 5]
    with pytest.raises(ValueError, match="--device: got '0-', takes numbers and ranges"):
        cli.parse_devices("0-")


def test_the_pytest_command():
    given = argparse.Namespace(device="0-7", workers=None, paths=["tests/tools"], full=True, junitxml=None, rest=["-k", "x"])
    assert cli.pytest_command(given)[1:] == [
        "-m", "pytest", "-n", "8", "tests/tools", "--gym-device", "0,1,2,3,4,5,6,7", "--full", "-k", "x",
    ]  # fmt: skip


def test_the_launcher_is_where_the_readme_says():
    root = Path(__file__).resolve().parents[2]
    readme = (root / "README.md").read_text()
    assert "./gym run flash_attention_mha_grad" in readme and "./gym test" in readme
    assert "./gym test" in (root / ".ci" / "run").read_text()


def test_a_reader_that_stops_early_is_no_error():
    command = [sys.executable, "-m", "pypto_gym.tools.harness.cli", "new", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == ""
    assert process.returncode == 0
