"""flash_attention_mha for any architecture: skeleton SK-01, online softmax, C1-V1-C2-V2 in one loop over kv tiles."""

import pypto

from ..atoms import Band, Place, attend, edges, forward_tiles, kv_head


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]},
)
def kernel(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    head_dim,
    scale,
    band,
    tiles,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    forward(q, k, v, cu_seqlens_q, cu_seqlens_kv, (upper, lower), o, l, m, head_dim, scale, band, tiles)


def forward(q, k, v, cu_seqlens_q, cu_seqlens_kv, edge_masks, o, l, m, head_dim, scale, band, tiles):
    """The body of the kernel: every (sequence, head) pair, over matrices [tokens, heads * head_dim]."""
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    for b in pypto.loop(cu_seqlens_q.shape[0] - 1, name="LOOP_b", idx_name="b"):
        q_start, kv_start = cu_seqlens_q[b], cu_seqlens_kv[b]
        for h in pypto.loop(heads, name="LOOP_h", idx_name="h"):
            place = Place(
                q_row=q_start, q_col=h * head_dim,
                kv_row=kv_start, kv_col=kv_head(h, heads, kv_heads) * head_dim,
                stat_row=q_start, stat_col=h,
                q_len=cu_seqlens_q[b + 1] - q_start, kv_len=cu_seqlens_kv[b + 1] - kv_start,
            )  # fmt: skip
            attend(q, k, v, o, l, m, place, head_dim, scale, band, tiles, edge_masks=edge_masks)


def run(kernel, large, *, q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale, o, l, m):
    """Launches `kernel` on flat views of the tensors, with (large) tiles for the longest sequence."""
    q_len, kv_len = longest(cu_seqlens_q), longest(cu_seqlens_kv)
    # Rows that see no key are not written by the kernel: an empty sequence, or causal with more queries than keys.
    o.zero_(), l.zero_(), m.fill_(-float("inf"))
    if q_len == 0 or kv_len == 0:
        return
    band = Band(after=0, at_end=True) if causal else Band()
    tiles = forward_tiles(q_len, kv_len, q.shape[2], large)
    kernel(
        *(x.flatten(1) for x in (q, k, v)), cu_seqlens_q, cu_seqlens_kv, *edges(band, tiles, l),
        *(x.view(x.shape[0], -1) for x in (o, l, m)), q.shape[2], scale, band, tiles,
    )  # fmt: skip


def longest(cu_seqlens) -> int:
    """Length of the longest sequence."""
    bounds = cu_seqlens.tolist()
    return max(end - start for start, end in zip(bounds, bounds[1:]))


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_mha.py."""
    run(kernel, False, **tensors)
