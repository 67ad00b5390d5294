"""`./gym tiles conv-bp | conv-gemm | matmul | vector | check`"""

from __future__ import annotations

from pathlib import Path


def add_parser(subparsers) -> None:
    """Registers `tiles`."""
    parser = subparsers.add_parser("tiles", help="legal and good tile shapes, and what is wrong with others")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, options, function, text in KINDS:
        kind = kinds.add_parser(name, help=f"the best tiles for {text}")
        options(kind)
        kind.add_argument("--top", type=int, default=10, metavar="N", help="rows of the table (default: 10)")
        kind.add_argument("--png", type=Path, metavar="FILE", help="draw the first choice")
        kind.set_defaults(func=function)
    checks = kinds.add_parser("check", help="every rule that a given tile breaks").add_subparsers(
        dest="checked", required=True, metavar="KIND"
    )
    for (name, options, _, text), (tile_options, function) in zip(KINDS, CHECKS):
        kind = checks.add_parser(name, help=f"a tile for {text}")
        options(kind)
        tile_options(kind)
        kind.add_argument("--png", type=Path, metavar="FILE", help="draw the tile when it is legal")
        kind.set_defaults(func=function)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _pair(text: str) -> tuple[int, int]:
    """`1`, or `1,2` for height and width."""
    numbers = _numbers(text)
    return (numbers * 2)[:2]


# --- what the operation is -------------------------------------------------------------------------------------------


def _conv_options(parser) -> None:
    parser.add_argument("--input", type=_numbers, metavar="N,Cin,H,W", help="shape of the input, which is that of dx")
    parser.add_argument("--weight", type=_numbers, metavar="Cout,Cin,Kh,Kw")
    parser.add_argument("--stride", type=_pair, default=(1, 1), metavar="S[,S]")
    parser.add_argument("--pad", type=_pair, default=(0, 0), metavar="P[,P]")
    parser.add_argument("--dilation", type=_pair, default=(1, 1), metavar="D[,D]")
    parser.add_argument("--dtype", default="bf16", choices=("fp16", "bf16"))
    parser.add_argument("--network", metavar="NAME", help="instead of a shape: every layer of this network (resnet50)")


def _layer(arguments):
    from pypto_gym.tools.tiles.conv_backward_input import Layer

    for name, shape in (("--input", arguments.input), ("--weight", arguments.weight)):
        if shape is None or len(shape) != 4:
            raise ValueError(f"{name}: got {shape}, takes 4 numbers")
    batch, cin, hin, win = arguments.input
    cout, weight_cin, kh, kw = arguments.weight
    if weight_cin != cin:
        raise ValueError(f"--weight: Cin is {weight_cin}, --input has {cin} channels (groups = 1)")
    return Layer(batch, cin, hin, win, cout, kh, kw, arguments.stride, arguments.pad, arguments.dilation, arguments.dtype)


def _matmul_options(parser) -> None:
    for axis in "mkn":
        parser.add_argument(f"-{axis}", type=int, required=True)
    parser.add_argument("--dtype", default="bf16", choices=("fp16", "bf16", "fp32", "int8"))
    for flag, text in (
        ("a-trans", "A is stored as (k, m)"), ("b-trans", "B is stored as (n, k)"), ("a-nz", "A has the format NZ"),
        ("b-nz", "B has the format NZ"), ("bias", "with a bias"), ("scale", "with a scale for each column"),
        ("split-k", "divide K among cores"),
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", action="store_true", help=text)
    parser.add_argument("--reuse", type=int, metavar="TILES", help="tiles of a task: cube_l1_reuse_setting {-1: TILES}")


def _product(arguments):
    from pypto_gym.tools.tiles.matmul import Product

    names = ("m", "k", "n", "dtype", "a_trans", "b_trans", "a_nz", "b_nz", "bias", "scale", "split_k")
    if arguments.reuse is not None and arguments.reuse < 1:
        raise ValueError(f"--reuse: got {arguments.reuse}, takes 1 or more")
    return Product(**{name: getattr(arguments, name) for name in names})


def _vector_options(parser) -> None:
    parser.add_argument("--shape", type=_numbers, required=True, metavar="D[,D…]")
    parser.add_argument("--dtype", default="fp32", choices=("fp16", "bf16", "fp32", "int8"))
    parser.add_argument("--inputs", type=int, default=2, metavar="N", help="tensors that are read (default: 2)")
    parser.add_argument("--buffers", type=int, metavar="N", help="tiles that are live in UB (default: inputs + 1)")


def _work(arguments):
    from pypto_gym.tools.tiles.vector import Elementwise

    return Elementwise(arguments.shape, arguments.dtype, arguments.inputs, arguments.buffers)


# --- the best tiles --------------------------------------------------------------------------------------------------


def _network(arguments) -> dict:
    """The layers of --network."""
    from pypto_gym.tools.tiles.conv_backward_input import networks

    known = networks()
    if arguments.network not in known:
        raise ValueError(f"--network: got {arguments.network!r}, takes {', '.join(known)}")
    return known[arguments.network]


def _layer_shape(layer) -> str:
    return f"{layer.cin}x{layer.hin}x{layer.win} {layer.kh}x{layer.kw}/{layer.stride[0]} -> {layer.cout}"


def _solve_conv(arguments) -> int:
    from pypto_gym.tools.tiles import conv_backward_input as conv

    if arguments.network:
        rows = []
        for name, layer in _network(arguments).items():
            choice = conv.solve(layer, 1)[0]
            example = conv.estimate(layer, conv.smallest(layer))
            us, tasks, _, _, fill, _ = _cost(choice.estimate)
            rows.append((name, _layer_shape(layer), *_conv_tile(choice.tile), us, tasks, fill, f"{example.us:.1f}"))
        _print(("layer", "input", "L1 M,K,N", "L0 M,K,N", "us", "tasks", "fill", "smallest us"), rows)
        return 0
    layer = _layer(arguments)
    choices = conv.solve(layer, _top(arguments))
    _print(
        ("L1 M,K,N", "L0 M,K,N", *COST),
        [(*_conv_tile(choice.tile), *_cost(choice.estimate)) for choice in choices],
        f"dx is ({layer.hin * layer.win}, {layer.k}) x ({layer.k}, {layer.cin}), {layer.batch} times; output gradient "
        f"{layer.hout}x{layer.wout}",
    )
    best = choices[0].tile
    print(f"ConvBpTileL1Info(tileML1={best.l1.tileML1}, tileKL1={best.l1.tileKL1}, tileNL1={best.l1.tileNL1})")
    print(f"ConvBpTileL0Info(tileML0={best.l0.tileML0}, tileKL0={best.l0.tileKL0}, tileNL0={best.l0.tileNL0})")
    _draw_conv(arguments, layer, best)
    return 0


GEMM_TILE = ("rows", "m L0,L1", "k L0,L1,L1", "n L0,L1", "channels", "pack")


def _gemm_tile(tile) -> tuple[str, ...]:
    return (str(tile.rows), _commas(tile.m), _commas(tile.k), _commas(tile.n), str(tile.channels), str(tile.pack))


def _solve_gemm(arguments) -> int:
    from pypto_gym.tools.tiles import conv_gemm

    if arguments.network:
        rows = []
        for name, layer in _network(arguments).items():
            choice = conv_gemm.solve(layer, 1)[0]
            us, tasks, *_ = _cost(choice.estimate)
            rows.append((name, _layer_shape(layer), *_gemm_tile(choice.tile), us, tasks))
        _print(("layer", "input", *GEMM_TILE, "us", "tasks"), rows)
        return 0
    layer = _layer(arguments)
    choices = conv_gemm.solve(layer, _top(arguments))
    _print((*GEMM_TILE, *COST), [(*_gemm_tile(choice.tile), *_cost(choice.estimate)) for choice in choices])
    print(choices[0].tile)
    _draw_gemm(arguments, layer, choices[0].tile)
    return 0


def _solve_matmul(arguments) -> int:
    from pypto_gym.tools.tiles import matmul

    product = _product(arguments)
    choices = matmul.solve(product, _top(arguments), arguments.reuse)
    rows = [(*map(_commas, (c.tile.m, c.tile.k, c.tile.n)), str(c.reuse), *_cost(c.estimate)) for c in choices]
    _print(("m L0,L1", "k L0,L1", "n L0,L1", "reuse", *COST), rows)
    best = choices[0]
    split = ", enable_split_k=True" if product.split_k else ""
    print(f"pypto.set_cube_tile_shapes({best.tile.m}, {best.tile.k}, {best.tile.n}{split})")
    print(f'pass_options={{"cube_l1_reuse_setting": {{-1: {best.reuse}}}}}')
    _draw_matmul(arguments, product, best.tile, best.reuse)
    return 0


def _solve_vector(arguments) -> int:
    from pypto_gym.tools.tiles import vector

    work = _work(arguments)
    choices = vector.solve(work, _top(arguments))
    _print(("tile", *COST), [(_commas(choice.tile), *_cost(choice.estimate)) for choice in choices])
    print(f"pypto.set_vec_tile_shapes({', '.join(map(str, choices[0].tile))})")
    _draw_vector(arguments, work, choices[0].tile)
    return 0


# --- a given tile ----------------------------------------------------------------------------------------------------


def _conv_tile_options(parser) -> None:
    parser.add_argument("--l1", type=_numbers, required=True, metavar="M,K,N")
    parser.add_argument("--l0", type=_numbers, required=True, metavar="M,K,N")


def _gemm_tile_options(parser) -> None:
    parser.add_argument("--rows", type=int, required=True, metavar="N", help="rows of dx that one task computes")
    _matmul_tile_options(parser)
    parser.add_argument("--channels", type=int, required=True, metavar="N", help="channels of one copy of dy")
    parser.add_argument("--pack", type=int, default=1024, metavar="N", help="pairs of one transpose (default: 1024)")


def _matmul_tile_options(parser) -> None:
    parser.add_argument("--tile-m", type=_numbers, required=True, metavar="L0,L1")
    parser.add_argument("--tile-k", type=_numbers, required=True, metavar="L0,L1[,L1]")
    parser.add_argument("--tile-n", type=_numbers, required=True, metavar="L0,L1")


def _vector_tile_options(parser) -> None:
    parser.add_argument("--tile", type=_numbers, required=True, metavar="D[,D…]")


def _check_conv(arguments) -> int:
    from pypto_gym.tools.tiles import conv_backward_input as conv

    if len(arguments.l1) != 3 or len(arguments.l0) != 3:
        raise ValueError("--l1, --l0: take 3 numbers each: M, K, N")
    layer, tile = _layer(arguments), conv.Tile.of(arguments.l1, arguments.l0)
    return _verdict(conv.check(layer, tile)) or _legal(
        lambda: conv.estimate(layer, tile), lambda: _draw_conv(arguments, layer, tile)
    )


def _check_gemm(arguments) -> int:
    from pypto_gym.ops.conv.geometry import Tiles
    from pypto_gym.tools.tiles import conv_gemm

    layer = _layer(arguments)
    tile = Tiles(
        arguments.rows, arguments.tile_m, arguments.tile_k, arguments.tile_n, arguments.channels, arguments.pack
    )
    return _verdict(conv_gemm.check(layer, tile)) or _legal(
        lambda: conv_gemm.estimate(layer, tile), lambda: _draw_gemm(arguments, layer, tile)
    )


def _check_matmul(arguments) -> int:
    from pypto_gym.tools.tiles import matmul

    product = _product(arguments)
    tile = matmul.Tile.of(arguments.tile_m, arguments.tile_k, arguments.tile_n)
    return _verdict(matmul.check(product, tile)) or _legal(
        lambda: matmul.estimate(product, tile, arguments.reuse),
        lambda: _draw_matmul(arguments, product, tile, arguments.reuse),
    )


def _check_vector(arguments) -> int:
    from pypto_gym.tools.tiles import vector

    work = _work(arguments)
    return _verdict(vector.check(work, arguments.tile)) or _legal(
        lambda: vector.estimate(work, arguments.tile), lambda: _draw_vector(arguments, work, arguments.tile)
    )


def _verdict(broken) -> int:
    for violation in broken:
        print(violation)
    return 1 if broken else 0


def _legal(estimate, draw) -> int:
    _print(COST, [_cost(estimate())], "legal")
    draw()
    return 0


# --- output ----------------------------------------------------------------------------------------------------------

COST = ("us", "tasks", "waves", "traffic MB", "fill", "memory")


def _cost(cost) -> tuple[str, ...]:
    memory = " ".join(f"{name} {share:.0%}" for name, share in cost.memory.items())
    return (f"{cost.us:.1f}", f"{cost.tasks:,}", f"{cost.waves:,}", f"{cost.traffic / 1e6:.2f}", f"{cost.fill:.0%}", memory)


def _conv_tile(tile) -> tuple[str, str]:
    return (
        _commas((tile.l1.tileML1, tile.l1.tileKL1, tile.l1.tileNL1)),
        _commas((tile.l0.tileML0, tile.l0.tileKL0, tile.l0.tileNL0)),
    )


def _commas(numbers) -> str:
    return ",".join(map(str, numbers))


def _top(arguments) -> int:
    if arguments.top < 1:
        raise ValueError(f"--top: got {arguments.top}, takes 1 or more")
    return arguments.top


def _print(headings, rows, title: str | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if title:
        console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading not in ("layer", "input", "memory") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _draw_conv(arguments, layer, tile) -> None:
    if arguments.png:
        from pypto_gym.tools.tiles import conv_backward_input as conv
        from pypto_gym.tools.tiles.picture import draw

        title = f"dx {layer.cin}x{layer.hin}x{layer.win}, weight {layer.cout}x{layer.cin}x{layer.kh}x{layer.kw}, {layer.dtype}"
        size = (tile.l1.tileML1, tile.l1.tileNL1)
        draw(arguments.png, title, layer.hin * layer.win, layer.cin, size, ("M: Hin*Win", "N: Cin"),
             conv.estimate(layer, tile), row_length=layer.win)  # fmt: skip
        print(f"drawn: {arguments.png}")


def _draw_gemm(arguments, layer, tile) -> None:
    if arguments.png:
        from pypto_gym.tools.tiles import conv_gemm
        from pypto_gym.tools.tiles.picture import draw

        height, width = conv_gemm.phase_grid(layer)
        title = f"dx {_layer_shape(layer)}, {layer.dtype}, one phase of one image"
        size = (tile.rows * width, tile.m[0])
        draw(arguments.png, title, height * width, layer.cin, size, ("positions", "Cin"), conv_gemm.estimate(layer, tile))
        print(f"drawn: {arguments.png}")


def _draw_matmul(arguments, product, tile, reuse) -> None:
    if arguments.png:
        from pypto_gym.tools.tiles import matmul
        from pypto_gym.tools.tiles.picture import draw

        tiles = -(-product.m // tile.m_l0) * -(-product.n // tile.n_l0)
        reuse = reuse or int(matmul.automatic_reuse(tiles))
        title = f"matmul ({product.m}, {product.k}) x ({product.k}, {product.n}), {product.dtype}"
        draw(arguments.png, title, product.m, product.n, (tile.m_l0, tile.n_l0), ("M", "N"),
             matmul.estimate(product, tile, reuse), reuse=reuse)  # fmt: skip
        print(f"drawn: {arguments.png}")


def _draw_vector(arguments, work, tile) -> None:
    if arguments.png:
        from math import prod

        from pypto_gym.tools.tiles import vector
        from pypto_gym.tools.tiles.core import VECTOR_CORES
        from pypto_gym.tools.tiles.picture import draw

        draw(arguments.png, f"vector {work.shape}, {work.dtype}", prod(work.shape[:-1]), work.shape[-1],
             (prod(tile[:-1]), tile[-1]), ("leading axes as one", "last axis"), vector.estimate(work, tile),
             cores=VECTOR_CORES)  # fmt: skip
        print(f"drawn: {arguments.png}")


KINDS = (
    ("conv-bp", _conv_options, _solve_conv, "conv_backward_input"),
    ("conv-gemm", _conv_options, _solve_gemm, "conv_backward_input as an implicit GEMM"),
    ("matmul", _matmul_options, _solve_matmul, "matmul"),
    ("vector", _vector_options, _solve_vector, "vector operations"),
)
CHECKS = (
    (_conv_tile_options, _check_conv),
    (_gemm_tile_options, _check_gemm),
    (_matmul_tile_options, _check_matmul),
    (_vector_tile_options, _check_vector),
)
