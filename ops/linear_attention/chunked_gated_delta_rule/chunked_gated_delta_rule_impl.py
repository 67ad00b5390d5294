"""Chunked gated delta rule, forward pass, for any architecture.

Four steps, of which only the third is serial, and that only within a sequence and head (names as in `reference.chunked`):

    prepare  per chunk            normalise q and k; beta v and the gates copied into padded cells
    local    per chunk and head   T, U, W;  K_e = diag(exp(G_last - G)) K;  P = gamma_last I - K_e^T W;
                                  query = gamma Q - att W
    carry    per head, serial     S <- [P K_e^T] [S; U]
    output   per chunk and head   o = [query att] [S; U]

V' = U - W S is never formed: with P and query, what is left of a chunk once S is known is two products with one right
operand, and no vector operation stands between one chunk's state and the next.
"""

import functools
import math

import pypto

from ..atoms import (
    AFTER, STRICT, TRIL, Chunk, Shape, Tuning, block, chunks, constant, constants, copy, inverse, matmul, norm,
    scratch, store,
)  # fmt: skip

FP32 = pypto.DT_FP32
TUNING = Tuning()


def launch(*, q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, o, final_state, tuning=TUNING):
    """Fills o [T, Hv, Dv] and final_state [B, Hv, Dk, Dv]."""
    shape = Shape.of(q, initial_state, chunk_size)
    _kernel(shape, tuning)(
        *(x.flatten(1) for x in (q, k, v)), g, beta, initial_state.flatten(0, 2), cu_seqlens,
        constants(chunk_size, g), g.new_zeros((shape.key_dim, shape.key_dim)).fill_diagonal_(1),
        g.new_ones((shape.key_dim, chunk_size)), *scratch(sizes(shape), shape, g), o.flatten(1), final_state.flatten(0, 2),
    )  # fmt: skip


def sizes(shape):
    """Name -> rows of a cell and columns of each matrix that one step hands to the next."""
    size, qk = shape.chunk_size, shape.qk_heads * shape.key_dim
    heads, key, value = shape.value_heads, shape.value_heads * shape.key_dim, shape.value_heads * shape.value_dim
    return {
        "q_unit": (size, qk), "k_unit": (size, qk), "v_beta": (size, value), "g_pad": (size, heads),
        "beta_pad": (size, heads),
        "pk": (shape.key_dim + size, key), "query_att": (size, key + heads * size),
        "su_even": (shape.key_dim + size, value), "su_odd": (shape.key_dim + size, value),
    }  # fmt: skip


@functools.lru_cache
def _kernel(shape, tuning):
    t, n = pypto.DYNAMIC, pypto.DYNAMIC
    batch, heads, size, dim, dtype = shape.batch, shape.value_heads, shape.chunk_size, shape.key_dim, shape.dtype
    qk, key, value = shape.qk_heads * dim, heads * dim, heads * shape.value_dim
    state = [batch * heads * dim, shape.value_dim]

    @pypto.frontend.jit(runtime_options=tuning.runtime, pass_options=tuning.passes)
    def chunked_gated_delta_rule(
        q: pypto.Tensor([t, qk], dtype),
        k: pypto.Tensor([t, qk], dtype),
        v: pypto.Tensor([t, value], dtype),
        g: pypto.Tensor([t, heads], FP32),
        beta: pypto.Tensor([t, heads], FP32),
        initial_state: pypto.Tensor(state, FP32),
        cu_seqlens: pypto.Tensor([batch + 1], pypto.DT_INT32),
        packed: pypto.Tensor([n, size], FP32),
        eye: pypto.Tensor([dim, dim], FP32),
        ones: pypto.Tensor([dim, size], FP32),
        q_unit: pypto.Tensor([n, qk], FP32),
        k_unit: pypto.Tensor([n, qk], FP32),
        v_beta: pypto.Tensor([n, value], FP32),
        g_pad: pypto.Tensor([n, heads], FP32),
        beta_pad: pypto.Tensor([n, heads], FP32),
        pk: pypto.Tensor([n, key], FP32),
        query_att: pypto.Tensor([n, key + heads * size], FP32),
        su_even: pypto.Tensor([n, value], FP32),
        su_odd: pypto.Tensor([n, value], FP32),
        o: pypto.Tensor([t, value], dtype),
        final_state: pypto.Tensor(state, FP32),
    ):
        for b in pypto.loop(batch, name="prepare_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="prepare_chunk", idx_name="c"):
                _prepare(shape, Chunk(cu_seqlens, b, c, size), q, k, v, g, beta, q_unit, k_unit, v_beta, g_pad, beta_pad)
        for b in pypto.loop(batch, name="local_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="local_chunk", idx_name="c"):
                _local(shape, tuning, Chunk(cu_seqlens, b, c, size), packed, eye, ones,
                       q_unit, k_unit, v_beta, g_pad, beta_pad, pk, query_att, su_even, su_odd)  # fmt: skip
        for b in pypto.loop(batch, name="carry_sequence", idx_name="b"):
            for h in pypto.loop(heads, name="carry_head", idx_name="h"):
                _carry(shape, tuning, cu_seqlens, b, h, initial_state, pk, su_even, su_odd, final_state)
        for b in pypto.loop(batch, name="output_sequence", idx_name="b"):
            count = chunks(cu_seqlens, b, size)
            for i in pypto.loop((count + 1) // 2, name="output_chunks", idx_name="i"):
                for _ in pypto.loop(1, name="output_even"):
                    _output(shape, Chunk(cu_seqlens, b, 2 * i, size), query_att, su_even, o)
                for _ in pypto.loop((count // 2 - i).min(1), name="output_odd"):
                    _output(shape, Chunk(cu_seqlens, b, 2 * i + 1, size), query_att, su_odd, o)

    return chunked_gated_delta_rule


def _prepare(shape, chunk, q, k, v, g, beta, q_unit, k_unit, v_beta, g_pad, beta_pad):
    row, heads, dim, width = chunk.cell * chunk.size, shape.value_heads, shape.key_dim, shape.value_dim
    pypto.set_vec_tile_shapes(chunk.size, max(dim, width))
    store(copy(chunk.tokens(g, heads, 0)), g_pad, row, 0)
    store(copy(chunk.tokens(beta, heads, 0)), beta_pad, row, 0)
    for h in range(shape.qk_heads):
        x = chunk.tokens(q, dim, h * dim)
        store(x / norm(x) * dim**-0.5, q_unit, row, h)
        x = chunk.tokens(k, dim, h * dim)
        store(x / norm(x), k_unit, row, h)
    for h in range(heads):
        store(chunk.tokens(v, width, h * width) * chunk.tokens(beta, 1, h), v_beta, row, h)


def _local(shape, tuning, chunk, packed, eye, ones, q_unit, k_unit, v_beta, g_pad, beta_pad,
           pk, query_att, su_even, su_odd):  # fmt: skip
    size, dim, width, row = chunk.size, shape.key_dim, shape.value_dim, chunk.cell * chunk.size
    tril, strict, after = (constant(packed, which) for which in (TRIL, STRICT, AFTER))
    pypto.set_vec_tile_shapes(tuning.vec_rows, max(dim, width, size))
    for h in range(shape.qk_heads):
        q, k = block(q_unit, row, size, h, dim), block(k_unit, row, size, h, dim)
        kk, qk = matmul(k, k, b_trans=True), matmul(q, k, b_trans=True)
        for j in shape.value_heads_of(h):
            g, beta = block(g_pad, row, size, j, 1), block(beta_pad, row, size, j, 1)
            # Sums of gates, never differences of running sums: those cancel after a few gates of -30.
            decay = matmul(tril, strict * g).exp() * tril
            gamma, to_end = matmul(tril, g).exp(), matmul(after, g).exp()
            gamma_last = matmul(ones, g).exp()
            att = qk * decay
            t = inverse(kk * decay * beta, packed)
            w, u = matmul(t, k * (beta * gamma)), matmul(t, block(v_beta, row, size, j, width))
            k_end = k * to_end
            store(eye * gamma_last - matmul(w, k_end, a_trans=True), pk, chunk.cell * (dim + size), j)
            store(k_end, pk, chunk.cell * (dim + size) + dim, j)
            pypto.assemble(q * gamma - matmul(att, w), [row, j * (dim + size)], query_att)
            pypto.assemble(att, [row, j * (dim + size) + dim], query_att)
            for su in (su_even, su_odd):
                store(u, su, chunk.state * (dim + size) + dim, j)


def _carry(shape, tuning, cu_seqlens, b, h, initial_state, pk, su_even, su_odd, final_state):
    """Chunk by chunk S <- [P K_e^T] [S; U].

    A chunk reads [S; U] from one of two matrices and puts the next S into the other, by turns: a graph that reads and
    writes one tensor would be a cycle. So S of the even chunks is in `su_even`, of the odd ones in `su_odd`.
    """
    dim, width, both = shape.key_dim, shape.value_dim, shape.key_dim + shape.chunk_size
    n, first = chunks(cu_seqlens, b, shape.chunk_size), Chunk(cu_seqlens, b, 0, shape.chunk_size)
    head_row = (b * shape.value_heads + h) * dim

    def step(c, source, target):
        left = block(pk, (first.cell + c) * both, both, h, dim)
        store(product(left, block(source, (first.state + c) * both, both, h, width), a_trans=True), target,
              (first.state + c + 1) * both, h)  # fmt: skip

    def finish(source):
        pypto.assemble(copy(block(source, (first.state + n) * both, dim, h, width)), [head_row, 0], final_state)

    pypto.set_vec_tile_shapes(tuning.carry_rows, width)
    for _ in pypto.loop(1, name="carry_begin"):
        store(copy(pypto.view(initial_state, [dim, width], [head_row, 0])), su_even, first.state * both, h)
    for i in pypto.loop((n + 1) // 2, name="carry_chunks", idx_name="i"):
        for _ in pypto.loop(1, name="carry_even"):
            step(2 * i, su_even, su_odd)
        for _ in pypto.loop((n // 2 - i).min(1), name="carry_odd"):  # with an odd n the last one has no partner
            step(2 * i + 1, su_odd, su_even)
    odd = n - n // 2 * 2
    for _ in pypto.loop(1 - odd, name="carry_end_even"):
        finish(su_even)
    for _ in pypto.loop(odd, name="carry_end_odd"):
        finish(su_odd)


def product(a, b, a_trans=False):
    """a @ b in FP32 with the whole of a long K in L1: fewer, larger copies than `atoms.matmul` makes."""
    (m, k), n = (a.shape[::-1] if a_trans else a.shape), b.shape[1]
    pypto.set_cube_tile_shapes([m, m], [math.gcd(k, 128), k], [n, n])
    return pypto.matmul(a, b, FP32, a_trans=a_trans)


def _output(shape, chunk, query_att, su, o):
    size, dim, width, both = chunk.size, shape.key_dim, shape.value_dim, shape.key_dim + chunk.size
    pypto.set_vec_tile_shapes(size, width)
    for j in range(shape.value_heads):
        left = pypto.view(query_att, [size, both], [chunk.cell * size, j * both], valid_shape=[chunk.length, both])
        chunk.store(product(left, block(su, chunk.state * both, both, j, width)), o, j * width)
