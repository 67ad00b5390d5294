"""`./gym tiles`."""

import pytest

from pypto_gym.tools.harness import cli

LAYER = "--input 1,64,56,56 --weight 64,64,3,3 --stride 1 --pad 1 --dtype bf16"


def gym(capsys, line):
    code = cli.main(["tiles", *line.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.parametrize(
    "line,printed",
    [
        (f"conv-bp {LAYER} --top 3", "ConvBpTileL1Info(tileML1=224, tileKL1=576, tileNL1=64)"),
        ("matmul -m 96 -k 1536 -n 3072 --top 3", "pypto.set_cube_tile_shapes([96, 96], [128, 512], [128, 128])"),
        ("vector --shape 512,2048", "pypto.set_vec_tile_shapes("),
        (f"conv-gemm {LAYER} --top 3", "Tiles(rows=7, m=(64, 64)"),
        ("conv-bp --network resnet50", "layer4.conv2"),
        ("conv-gemm --network resnet50", "layer4.conv2"),
    ],
)
def test_the_best_tiles(capsys, line, printed):
    code, out, _ = gym(capsys, line)
    assert code == 0 and printed in out and "tasks" in out


@pytest.mark.parametrize(
    "line",
    [f"conv-bp {LAYER}", f"conv-gemm {LAYER}", "matmul -m 300 -k 64 -n 200", "vector --shape 4,32,500"],
)
def test_the_picture(capsys, tmp_path, line):
    picture = tmp_path / "tiles.png"
    code, out, _ = gym(capsys, f"{line} --png {picture}")
    assert code == 0 and "drawn:" in out and picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "line,code,printed",
    [
        (f"conv-bp {LAYER} --l1 16,576,16 --l0 16,16,16", 0, "legal"),
        (f"conv-bp {LAYER} --l1 60,576,16 --l0 16,16,16", 1, "tileML1 = 60"),
        (f"conv-gemm {LAYER} --rows 4 --tile-m 64,64 --tile-k 64,192 --tile-n 224,224 --channels 64", 0, "legal"),
        (f"conv-gemm {LAYER} --rows 4 --tile-m 64,64 --tile-k 24,192 --tile-n 224,224 --channels 65", 1, "channels = 65"),
        ("matmul -m 128 -k 128 -n 128 --tile-m 128,128 --tile-k 64,128 --tile-n 128,128", 0, "legal"),
        ("matmul -m 128 -k 128 -n 128 --tile-m 128,128 --tile-k 8,128 --tile-n 128,128", 1, "kL0 = 8"),
        ("vector --shape 64,64 --tile 64,64", 0, "legal"),
        ("vector --shape 64,64 --tile 64", 1, "rank: tile has 1 dimensions, takes 2"),
    ],
)
def test_check(capsys, line, code, printed):
    result, out, _ = gym(capsys, f"check {line}")
    assert result == code and printed in out


@pytest.mark.parametrize(
    "line,message",
    [
        ("conv-bp --input 1,2 --weight 64,64,3,3", "--input: got (1, 2), takes 4 numbers"),
        ("conv-bp --input 1,64,56,56 --weight 64,32,3,3", "--weight: Cin is 32, --input has 64 channels (groups = 1)"),
        ("conv-gemm --network alexnet", "--network: got 'alexnet', takes resnet50"),
        ("conv-bp --network alexnet", "--network: got 'alexnet', takes resnet50"),
        ("matmul -m 1 -k 1 -n 1 --top 0", "--top: got 0, takes 1 or more"),
        ("check matmul -m 1 -k 1 -n 1 --tile-m 16 --tile-k 16,16 --tile-n 16,16", "m: got [16], takes 2 values"),
    ],
)
def test_a_mistake_is_one_sentence(capsys, line, message):
    code, _, err = gym(capsys, line)
    assert code == 2 and message in err and "Traceback" not in err
