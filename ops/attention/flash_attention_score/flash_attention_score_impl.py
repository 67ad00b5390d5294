"""flash_attention_score for any architecture: skeleton SK-01 over dense layouts, with bands, bias and dropout mask."""

from dataclasses import dataclass

import pypto

from ..atoms import Band, Place, attend, edges, forward_tiles, kv_head, tail_view


@dataclass(frozen=True)
class Dense:
    """Compile-time shape of the problem. `layout` is "BSH" or "BNSD"."""

    layout: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int

    def place(self, b, h) -> Place:
        """Where the (batch, head) pair lies in two-dimensional matrices: rows of tokens, or of (head, token) pairs."""
        hkv, lengths = kv_head(h, self.heads, self.kv_heads), dict(q_len=self.q_len, kv_len=self.kv_len)
        row = (b * self.heads + h) * self.q_len
        if self.layout == "BNSD":
            kv_row = (b * self.kv_heads + hkv) * self.kv_len
            return Place(q_row=row, q_col=0, kv_row=kv_row, kv_col=0, stat_row=row, stat_col=0, **lengths)
        return Place(
            q_row=b * self.q_len, q_col=h * self.head_dim, kv_row=b * self.kv_len, kv_col=hkv * self.head_dim,
            stat_row=row, stat_col=0, **lengths,
        )  # fmt: skip


def matrix(x, layout):
    """[B, S, H] as [B S, H], [B, N, S, D] as [B N S, D]: a view."""
    return x.flatten(0, 1) if layout == "BSH" else x.flatten(0, 2)


def band_of(sparse_mode: int, pre_tokens: int, next_tokens: int) -> Band:
    """The band of a sparse mode as torch_npu's fusion attention numbers them; see flash_attention_score.py."""
    if sparse_mode == 2:
        return Band(after=0)
    if sparse_mode == 3:
        return Band(after=0, at_end=True)
    if sparse_mode == 4:
        return Band(before=pre_tokens, after=next_tokens, at_end=True)
    return Band()


def plane(shape, b, h, q_len):
    """First row of the [q_len, kv_len] matrix of (b, h) in a broadcast [B or 1, N or 1, q_len, kv_len] tensor."""
    return ((b if shape[0] > 1 else 0) * shape[1] + (h if shape[1] > 1 else 0)) * q_len


@pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
def kernel(
    q: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    bias: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    keep: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_UINT8),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    o: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dense,
    scale,
    keep_prob,
    band,
    tiles,
    bias_shape,
    keep_shape,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    extras = Extras(bias, bias_shape, keep, keep_shape, keep_prob, dense, tiles)
    forward(q, k, v, extras, (upper, lower), o, l, m, dense, scale, band, tiles)


class Extras:
    """Position bias and dropout mask of a (batch, head) pair, as tiles [q, kv] FP32."""

    def __init__(self, bias, bias_shape, keep, keep_shape, keep_prob, dense, tiles):
        self.bias, self.bias_shape, self.keep, self.keep_shape = bias, bias_shape, keep, keep_shape
        self.keep_prob, self.dense, self.shape = keep_prob, dense, [tiles.q, tiles.kv]

    def bias_at(self, b, h):
        """None, or the function (row, column, valid) -> tile that `attend` takes."""
        if self.bias_shape is None:
            return None
        first = plane(self.bias_shape, b, h, self.dense.q_len)
        return lambda row, column, valid: tail_view(self.bias, self.shape, [first + row, column], valid)

    def keep_at(self, b, h):
        """The same for the factor of the weights: 1 / keep_prob where the mask is 1, else 0."""
        if self.keep_shape is None:
            return None
        first = plane(self.keep_shape, b, h, self.dense.q_len)

        def tile(row, column, valid):
            kept = tail_view(self.keep, self.shape, [first + row, column], valid)
            return pypto.mul(pypto.cast(pypto.cast(kept, pypto.DT_FP16), pypto.DT_FP32), 1.0 / self.keep_prob)

        return tile


def forward(q, k, v, extras, edge_masks, o, l, m, dense, scale, band, tiles):
    """The body of the kernel: every (batch, head) pair."""
    for b in pypto.loop(dense.batch, name="LOOP_b", idx_name="b"):
        for h in pypto.loop(dense.heads, name="LOOP_h", idx_name="h"):
            attend(
                q, k, v, o, l, m, dense.place(b, h), dense.head_dim, scale, band, tiles,
                edge_masks=edge_masks, bias=extras.bias_at(b, h), keep=extras.keep_at(b, h),
            )  # fmt: skip


def problem(q, k, layout, head_num):
    """`Dense` of these tensors."""
    if layout == "BNSD":
        (b, n, s, d), kv_heads, kv_len = q.shape, k.shape[1], k.shape[2]
    else:
        (b, s, d), n, kv_len = q.shape, head_num, k.shape[1]
        d //= n
        kv_heads = k.shape[2] // d
    return Dense(layout, b, n, kv_heads, s, kv_len, d)


def optional(x, like):
    """Two-dimensional view and (batch, head) shape of a broadcast tensor; 1x1 and None where there is none."""
    return (like.new_zeros((1, 1)), None) if x is None else (x.flatten(0, 2), tuple(x.shape[:2]))


def run(kernel, large, *, q, k, v, head_num, layout, scale, sparse_mode, pre_tokens, next_tokens, bias, keep, keep_prob, o, l, m):
    """Launches `kernel` on flat views of the tensors."""
    dense = problem(q, k, layout, head_num)
    band = band_of(sparse_mode, pre_tokens, next_tokens)
    if band.rows(dense.q_len, dense.kv_len) != (0, dense.q_len):  # rows that see nothing are not written by the kernel
        o.zero_(), l.zero_(), m.fill_(-float("inf"))
    tiles = forward_tiles(dense.q_len, dense.kv_len, dense.head_dim, large)
    bias, bias_shape = optional(bias, l)
    keep, keep_shape = optional(keep, l.byte() if keep is None else keep)
    kernel(
        *(matrix(x, layout) for x in (q, k, v)), bias, keep, *edges(band, tiles, l), matrix(o, layout),
        l.flatten(0, 2), m.flatten(0, 2), dense, scale, keep_prob, band, tiles, bias_shape, keep_shape,
    )  # fmt: skip


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_score.py, BF16 and contiguous."""
    run(kernel, False, **tensors)
