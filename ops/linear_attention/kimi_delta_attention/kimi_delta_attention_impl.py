"""Kimi delta attention (a gate per key channel), chunked forward pass, for any architecture.

Four steps, of which only the third is serial, and that only within a sequence and head (names as in the golden):

    prepare  per chunk            normalise q and k; beta v and the gates copied into padded cells
    local    per chunk and head   the pairs level by level, T, U, W;  P = diag(exp G_last) - K_e^T W;  R = K_e^T U;
                                  query = Q * exp(G) - att W;  base = att U
    carry    per head, serial     S <- P S + R
    output   per chunk and head   o = query S + base

It is the skeleton of the chunked gated delta rule; what differs is where the gate stands: decays are [C, Dk] factors of
q and k instead of one [C, C] factor of their product.
"""

import functools

import pypto

from ..atoms import (
    AFTER, EYE, LEVELS, TRIL, Chunk, Shape, Tuning, block, chunks, constant, constants, copy, inverse, level_sizes,
    matmul, norm, scratch, store,
)  # fmt: skip

FP32 = pypto.DT_FP32
TUNING = Tuning()


def launch(*, q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, o, final_state, tuning=TUNING):
    """Fills o [T, Hv, Dv] and final_state [B, Hv, Dk, Dv]."""
    shape = Shape.of(q, initial_state, chunk_size)
    _kernel(shape, tuning)(
        *(x.flatten(1) for x in (q, k, v, g)), beta, initial_state.flatten(0, 2), cu_seqlens,
        constants(chunk_size, g), between(chunk_size, g), g.new_zeros((shape.key_dim, shape.key_dim)).fill_diagonal_(1),
        g.new_ones((chunk_size, 1)), *scratch(sizes(shape), shape, g), o.flatten(1), final_state.flatten(0, 2),
    )  # fmt: skip


def between(chunk_size, like):
    """Host-side 0/1 matrices, one for each of `level_sizes`, one below the other: [levels * chunk_size, chunk_size] FP32.

    At level b, times g: the sum of the gates between a token and the middle of its block of 2b tokens, behind the token
    in the first half of the block, up to and with the token in the second.
    """
    ones = like.new_ones((chunk_size, chunk_size)).float()
    j, i = ones.cumsum(1) - 1, ones.cumsum(0) - 1
    packed = ones.new_empty((len(level_sizes(chunk_size)) * chunk_size, chunk_size))
    for n, b in enumerate(level_sizes(chunk_size)):
        middle = i // (2 * b) * 2 * b + b
        second, first = (middle <= j) & (j <= i), (i < j) & (j < middle)
        packed[n * chunk_size : (n + 1) * chunk_size] = second | first
    return packed


def sizes(shape):
    """Name -> rows of a cell and columns of each matrix that one step hands to the next."""
    size, qk = shape.chunk_size, shape.qk_heads * shape.key_dim
    heads, key, value = shape.value_heads, shape.value_heads * shape.key_dim, shape.value_heads * shape.value_dim
    return {
        "q_unit": (size, qk), "k_unit": (size, qk), "v_beta": (size, value), "g_pad": (size, key),
        "beta_pad": (size, heads), "p": (shape.key_dim, key), "r": (shape.key_dim, value),
        "query": (size, key), "base": (size, value), "s": (shape.key_dim, value),
    }  # fmt: skip


@functools.lru_cache
def _kernel(shape, tuning):
    t, n = pypto.DYNAMIC, pypto.DYNAMIC
    batch, heads, size, dim, dtype = shape.batch, shape.value_heads, shape.chunk_size, shape.key_dim, shape.dtype
    qk, key, value = shape.qk_heads * dim, heads * dim, heads * shape.value_dim
    state = [batch * heads * dim, shape.value_dim]

    @pypto.frontend.jit(runtime_options=tuning.runtime, pass_options=tuning.passes)
    def kimi_delta_attention(
        q: pypto.Tensor([t, qk], dtype),
        k: pypto.Tensor([t, qk], dtype),
        v: pypto.Tensor([t, value], dtype),
        g: pypto.Tensor([t, key], FP32),
        beta: pypto.Tensor([t, heads], FP32),
        initial_state: pypto.Tensor(state, FP32),
        cu_seqlens: pypto.Tensor([batch + 1], pypto.DT_INT32),
        packed: pypto.Tensor([n, size], FP32),
        sums: pypto.Tensor([n, size], FP32),
        eye: pypto.Tensor([dim, dim], FP32),
        ones: pypto.Tensor([size, 1], FP32),
        q_unit: pypto.Tensor([n, qk], FP32),
        k_unit: pypto.Tensor([n, qk], FP32),
        v_beta: pypto.Tensor([n, value], FP32),
        g_pad: pypto.Tensor([n, key], FP32),
        beta_pad: pypto.Tensor([n, heads], FP32),
        p: pypto.Tensor([n, key], FP32),
        r: pypto.Tensor([n, value], FP32),
        query: pypto.Tensor([n, key], FP32),
        base: pypto.Tensor([n, value], FP32),
        s: pypto.Tensor([n, value], FP32),
        o: pypto.Tensor([t, value], dtype),
        final_state: pypto.Tensor(state, FP32),
    ):
        for b in pypto.loop(batch, name="prepare_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="prepare_chunk", idx_name="c"):
                _prepare(shape, Chunk(cu_seqlens, b, c, size), q, k, v, g, beta, q_unit, k_unit, v_beta, g_pad, beta_pad)
        for b in pypto.loop(batch, name="local_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="local_chunk", idx_name="c"):
                _local(shape, tuning, Chunk(cu_seqlens, b, c, size), packed, sums, eye, ones,
                       q_unit, k_unit, v_beta, g_pad, beta_pad, p, r, query, base)  # fmt: skip
        for b in pypto.loop(batch, name="carry_sequence", idx_name="b"):
            for h in pypto.loop(heads, name="carry_head", idx_name="h"):
                _carry(shape, tuning, cu_seqlens, b, h, initial_state, p, r, s, final_state)
        for b in pypto.loop(batch, name="output_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="output_chunk", idx_name="c"):
                _output(shape, tuning, Chunk(cu_seqlens, b, c, size), query, base, s, o)

    return kimi_delta_attention


def _prepare(shape, chunk, q, k, v, g, beta, q_unit, k_unit, v_beta, g_pad, beta_pad):
    row, dim, width = chunk.cell * chunk.size, shape.key_dim, shape.value_dim
    pypto.set_vec_tile_shapes(chunk.size, max(dim, width))
    store(copy(chunk.tokens(beta, shape.value_heads, 0)), beta_pad, row, 0)
    for h in range(shape.qk_heads):
        x = chunk.tokens(q, dim, h * dim)
        store(x / norm(x) * dim**-0.5, q_unit, row, h)
        x = chunk.tokens(k, dim, h * dim)
        store(x / norm(x), k_unit, row, h)
    for h in range(shape.value_heads):
        store(chunk.tokens(v, width, h * width) * chunk.tokens(beta, 1, h), v_beta, row, h)
        store(copy(chunk.tokens(g, dim, h * dim)), g_pad, row, h)


def _local(shape, tuning, chunk, packed, sums, eye, ones, q_unit, k_unit, v_beta, g_pad, beta_pad,
           p_out, r_out, query_out, base_out):  # fmt: skip
    size, dim, width, row = chunk.size, shape.key_dim, shape.value_dim, chunk.cell * chunk.size
    tril, after, diagonal = (constant(packed, which) for which in (TRIL, AFTER, EYE))
    pypto.set_vec_tile_shapes(tuning.vec_rows, max(dim, width, size))
    for h in range(shape.qk_heads):
        q, k = block(q_unit, row, size, h, dim), block(k_unit, row, size, h, dim)
        own = diagonal * (q * k).sum(-1, keepdim=True)
        for j in shape.value_heads_of(h):
            g, beta = block(g_pad, row, size, j, dim), block(beta_pad, row, size, j, 1)
            a, att = None, own
            for level in range(len(level_sizes(size))):
                factor, pairs = matmul(constant(sums, level), g).exp(), constant(packed, LEVELS + level)
                leading, asking = k * factor, q * factor
                a_level = matmul(leading, leading, b_trans=True) * pairs
                a = a_level if a is None else a + a_level
                att = att + matmul(asking, leading, b_trans=True) * pairs
            t = inverse(a * beta, packed)
            gamma, k_end = matmul(tril, g).exp(), k * matmul(after, g).exp()
            gamma_last = matmul(g, ones, a_trans=True).exp()
            w, u = matmul(t, k * gamma * beta), matmul(t, block(v_beta, row, size, j, width))
            store(eye * gamma_last - matmul(k_end, w, a_trans=True), p_out, chunk.cell * dim, j)
            store(matmul(k_end, u, a_trans=True), r_out, chunk.cell * dim, j)
            store(q * gamma - matmul(att, w), query_out, row, j)
            store(matmul(att, u), base_out, row, j)


def _carry(shape, tuning, cu_seqlens, b, h, initial_state, p, r, s_out, final_state):
    dim, width = shape.key_dim, shape.value_dim
    first = Chunk(cu_seqlens, b, 0, shape.chunk_size)
    pypto.set_vec_tile_shapes(tuning.carry_rows, width)
    head_row = (b * shape.value_heads + h) * dim
    s = pypto.tensor([dim, width], FP32, "s")
    s_new = copy(pypto.view(initial_state, [dim, width], [head_row, 0]))
    store(s_new, s_out, first.state * dim, h)
    s[:] = s_new
    for i in pypto.loop(chunks(cu_seqlens, b, shape.chunk_size), name="carry_chunk", idx_name="i"):
        row = (first.cell + i) * dim
        s_new = matmul(block(p, row, dim, h, dim), s) + block(r, row, dim, h, width)
        store(s_new, s_out, (first.state + i + 1) * dim, h)
        s[:] = s_new
    pypto.assemble(copy(s), [head_row, 0], final_state)


def _output(shape, tuning, chunk, query, base, s, o):
    size, dim, width, row = chunk.size, shape.key_dim, shape.value_dim, chunk.cell * chunk.size
    pypto.set_vec_tile_shapes(tuning.vec_rows, max(dim, width))
    for j in range(shape.value_heads):
        carried = matmul(block(query, row, size, j, dim), block(s, chunk.state * dim, dim, j, width))
        chunk.store(chunk.existing(carried) + chunk.existing(block(base, row, size, j, width)), o, j * width)
