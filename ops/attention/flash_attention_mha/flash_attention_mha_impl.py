"""flash_attention_mha for any architecture: skeleton SK-01, online softmax, C1-V1-C2-V2 in one loop over kv tiles."""

import pypto

from ..atoms import Band, Layout, attend, edges, forward_tiles, longest

RUNTIME = {"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]}


def forward(
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
    layout,
    scale,
    band,
    tiles,
):
    """Every (sequence, head) pair, over matrices [tokens, heads * head_dim]; upper and lower are those of `edges`."""
    pypto.experimental.set_operation_options(combine_axis=True)
    for b in pypto.loop(cu_seqlens_q.shape[0] - 1, name="LOOP_b", idx_name="b"):
        for h in pypto.loop(layout.heads, name="LOOP_h", idx_name="h"):
            place = layout.place(b, h, cu_seqlens_q, cu_seqlens_kv)
            attend(q, k, v, o, l, m, place, layout.head_dim, scale, band, tiles, edge_masks=(upper, lower))


kernel = pypto.frontend.jit(runtime_options=RUNTIME)(forward)


def run(kernel, large, *, q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale, o, l, m):
    """Launches `kernel` on flat views of the tensors, with (large) tiles for the longest sequence."""
    q_len, kv_len = longest(cu_seqlens_q), longest(cu_seqlens_kv)
    # Rows that see no key are not written by the kernel: an empty sequence, or causal with more queries than keys.
    o.zero_(), l.zero_(), m.fill_(-float("inf"))
    if q_len == 0 or kv_len == 0:
        return
    layout = Layout.of("TND", q, k, q.shape[1])
    band = Band(after=0, at_end=True) if causal else Band()
    tiles = forward_tiles(q_len, kv_len, layout.head_dim, large)
    kernel(
        *map(layout.matrix, (q, k, v)), cu_seqlens_q, cu_seqlens_kv, *edges(band, tiles, l),
        *map(layout.matrix, (o, l, m)), layout, scale, band, tiles,
    )  # fmt: skip


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_mha.py."""
    run(kernel, False, **tensors)
