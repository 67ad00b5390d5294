"""What the attention kernels cost PyPTO's interpreter in memory: `sim_executions` of their records."""

from __future__ import annotations

from pypto_gym.tools.harness import Executions


def forward(lengths, heads, head_dim, viewed, written, large):
    """Executions of `atoms.attend` over sequences of these (q_len, kv_len), masked or not."""
    from pypto_gym.ops.attention import atoms

    tiles = atoms.forward_tiles(max(q for q, _ in lengths), max(kv for _, kv in lengths), head_dim, large)
    graphs = pairs = 0
    for q_len, kv_len in lengths:
        q_tiles, kv_tiles = -(-q_len // tiles.q) * heads, -(-kv_len // tiles.kv)
        pairs += q_tiles * kv_tiles
        for factor in tiles.unroll:
            graphs, kv_tiles = graphs + q_tiles * (kv_tiles // factor), kv_tiles % factor
    score, output = 4 * tiles.q * tiles.kv, 4 * tiles.q * head_dim
    return [Executions(graphs, viewed, written), Executions(pairs, tiles=6 * score + 4 * output)]


def backward(lengths, heads, head_dim, viewed, gradients, single_pass):
    """Executions of flash_attention_score_grad, masked or not; `gradients` are the bytes of dq and of dk and dv."""
    from pypto_gym.ops.attention.flash_attention_score_grad.flash_attention_score_grad_impl import grad_tiles

    tiles = grad_tiles(max(q for q, _ in lengths), max(kv for _, kv in lengths), head_dim)
    passes = 1 if single_pass or max(kv for _, kv in lengths) <= tiles.kv else 2
    pairs = passes * heads * sum(-(-q // tiles.q) * -(-kv // tiles.kv) for q, kv in lengths)
    score, output = 4 * tiles.q * tiles.kv, 4 * (tiles.q + tiles.kv) * head_dim
    compiler = Executions(1, tiles=(len(tiles.unroll) - 1) * 430 << 20)  # measured at 2; unrolled graphs are large
    bodies = [compiler, Executions(pairs, viewed, gradients, 9 * score + 6 * output)]
    if single_pass:  # the emulated atomic addition reads dq in a body of its own and writes it in another
        bodies += [Executions(pairs, gradients[:1], (), output), Executions(pairs, (), gradients[:1], output)]
    return bodies
