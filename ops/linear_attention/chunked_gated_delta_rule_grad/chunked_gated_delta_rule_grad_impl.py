"""Backward pass of the chunked gated delta rule, for any architecture.

Four steps, of which only the third is serial, and that only within a sequence and head (names as in the golden):

    prepare    per chunk            normalise q and k; beta v, do and the gates copied into padded cells
    local      per chunk and head   L, att, T, U, W;  P = gamma_last I - K_e^T W;  R = K_e^T U;  M = (gamma Q - att W)^T dO
    carry      per head, serial     N = P S + R forwards and dS = P^T dN + M backwards, as chunks c and n - 1 - c of one loop
    gradients  per chunk and head   everything else, from S, N and dN of the chunk

P, R and M leave the serial step two products of [Dk, Dk] and [Dk, Dv] a chunk.
"""

import functools
from dataclasses import dataclass

import pypto

from .. import atoms
from ..atoms import (
    STRICT, TRIL, TRIU, Chunk, Shape, block, chunks, constant, constants, copy, inverse, matmul, norm, scratch,
    store,
)  # fmt: skip

FP32 = pypto.DT_FP32


@dataclass(frozen=True, eq=False)
class Tuning(atoms.Tuning):
    """`final_tile`: elements of a vector tile after the last products of the gradients step: up to eleven tiles are in
    flight there, and UB has 184 KB."""

    final_tile: int = 4096


TUNING = Tuning()


def launch(*, q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state, chunk_size,
           dq, dk, dv, dg, dbeta, dinitial_state, tuning=TUNING):
    """Fills dq, dk [T, Hqk, Dk], dv [T, Hv, Dv], dg, dbeta [T, Hv] and dinitial_state [B, Hv, Dk, Dv]."""
    shape = Shape.of(q, initial_state, chunk_size)
    side = max(shape.key_dim, chunk_size)
    _kernel(shape, tuning)(
        *(x.flatten(1) for x in (q, k, v)), g, beta, initial_state.flatten(0, 2), cu_seqlens,
        do.flatten(1), d_final_state.flatten(0, 2),
        constants(chunk_size, g), g.new_zeros((shape.key_dim, shape.key_dim)).fill_diagonal_(1), g.new_ones((side, side)),
        *scratch(sizes(shape), shape, g),
        *(x.flatten(1) for x in (dq, dk, dv)), dg, dbeta, dinitial_state.flatten(0, 2),
    )  # fmt: skip




def sizes(shape):
    """Name -> rows of a cell and columns of each matrix that one step hands to the next."""
    size, qk = shape.chunk_size, shape.qk_heads * shape.key_dim
    heads, key, value = shape.value_heads, shape.value_heads * shape.key_dim, shape.value_heads * shape.value_dim
    return {
        "q_unit": (size, qk), "k_unit": (size, qk), "v_beta": (size, value), "do_pad": (size, value),
        "g_pad": (size, heads), "beta_pad": (size, heads),
        "factors": (2 * size, heads), "gamma_last": (shape.key_dim, heads), "w": (size, key), "u": (size, value),
        "inverse": (size, heads * size), "att": (size, heads * size), "decay": (size, heads * size),
        "p": (shape.key_dim, key), "r": (shape.key_dim, value), "m": (shape.key_dim, value),
        "s": (shape.key_dim, value), "d_next": (shape.key_dim, value),
    }  # fmt: skip


@functools.lru_cache
def _kernel(shape, tuning):
    t, n = pypto.DYNAMIC, pypto.DYNAMIC
    batch, heads, size, dim, dtype = shape.batch, shape.value_heads, shape.chunk_size, shape.key_dim, shape.dtype
    qk, key, value = shape.qk_heads * dim, heads * dim, heads * shape.value_dim
    state = [batch * heads * dim, shape.value_dim]

    @pypto.frontend.jit(runtime_options=tuning.runtime, pass_options=tuning.passes)
    def chunked_gated_delta_rule_grad(
        q: pypto.Tensor([t, qk], dtype),
        k: pypto.Tensor([t, qk], dtype),
        v: pypto.Tensor([t, value], dtype),
        g: pypto.Tensor([t, heads], FP32),
        beta: pypto.Tensor([t, heads], FP32),
        initial_state: pypto.Tensor(state, FP32),
        cu_seqlens: pypto.Tensor([batch + 1], pypto.DT_INT32),
        do: pypto.Tensor([t, value], dtype),
        d_final_state: pypto.Tensor(state, FP32),
        packed: pypto.Tensor([n, size], FP32),
        eye: pypto.Tensor([dim, dim], FP32),
        ones: pypto.Tensor([max(dim, size), max(dim, size)], FP32),
        q_unit: pypto.Tensor([n, qk], FP32),
        k_unit: pypto.Tensor([n, qk], FP32),
        v_beta: pypto.Tensor([n, value], FP32),
        do_pad: pypto.Tensor([n, value], FP32),
        g_pad: pypto.Tensor([n, heads], FP32),
        beta_pad: pypto.Tensor([n, heads], FP32),
        factors: pypto.Tensor([n, heads], FP32),
        gamma_last: pypto.Tensor([n, heads], FP32),
        w: pypto.Tensor([n, key], FP32),
        u: pypto.Tensor([n, value], FP32),
        inverse: pypto.Tensor([n, heads * size], FP32),
        att: pypto.Tensor([n, heads * size], FP32),
        decay: pypto.Tensor([n, heads * size], FP32),
        p: pypto.Tensor([n, key], FP32),
        r: pypto.Tensor([n, value], FP32),
        m: pypto.Tensor([n, value], FP32),
        s: pypto.Tensor([n, value], FP32),
        d_next: pypto.Tensor([n, value], FP32),
        dq: pypto.Tensor([t, qk], dtype),
        dk: pypto.Tensor([t, qk], dtype),
        dv: pypto.Tensor([t, value], dtype),
        dg: pypto.Tensor([t, heads], FP32),
        dbeta: pypto.Tensor([t, heads], FP32),
        dinitial_state: pypto.Tensor(state, FP32),
    ):
        for b in pypto.loop(batch, name="prepare_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="prepare_chunk", idx_name="c"):
                _prepare(shape, Chunk(cu_seqlens, b, c, size), packed, ones, q, k, v, g, beta, do,
                         q_unit, k_unit, v_beta, do_pad, g_pad, beta_pad, factors, gamma_last)  # fmt: skip
        for b in pypto.loop(batch, name="local_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="local_chunk", idx_name="c"):
                _local(shape, tuning, Chunk(cu_seqlens, b, c, size), packed, eye,
                       q_unit, k_unit, v_beta, do_pad, g_pad, beta_pad, factors, gamma_last,
                       w, u, inverse, att, decay, p, r, m)  # fmt: skip
        for b in pypto.loop(batch, name="carry_sequence", idx_name="b"):
            for h in pypto.loop(heads, name="carry_head", idx_name="h"):
                _carry(shape, tuning, cu_seqlens, b, h, initial_state, d_final_state, p, r, m, s, d_next, dinitial_state)
        for b in pypto.loop(batch, name="gradients_sequence", idx_name="b"):
            for c in pypto.loop(chunks(cu_seqlens, b, size), name="gradients_chunk", idx_name="c"):
                _gradients(shape, tuning, Chunk(cu_seqlens, b, c, size), packed, ones, q, k, v,
                           q_unit, k_unit, do_pad, beta_pad, factors, w, u, inverse, att, decay, s, d_next,
                           dq, dk, dv, dg, dbeta)  # fmt: skip

    return chunked_gated_delta_rule_grad


def _prepare(shape, chunk, packed, ones, q, k, v, g, beta, do,
             q_unit, k_unit, v_beta, do_pad, g_pad, beta_pad, factors, gamma_last):  # fmt: skip
    row, heads, dim, width = chunk.cell * chunk.size, shape.value_heads, shape.key_dim, shape.value_dim
    pypto.set_vec_tile_shapes(chunk.size, max(dim, width))
    store(copy(chunk.tokens(g, heads, 0)), g_pad, row, 0)
    # exp of the sums up to a token (gamma), behind it (to_end), and of all: sums of gates, never differences of sums.
    up_to_and_behind = pypto.view(packed, [2 * chunk.size, chunk.size], [TRIL, 0], valid_shape=[2 * chunk.size, chunk.length])
    gates = chunk.tokens(g, heads, 0)  # a view of its own: one that feeds a copy and a product loses its valid shape
    store(matmul(up_to_and_behind, gates).exp(), factors, 2 * row, 0)
    all_ones = pypto.view(ones, [dim, chunk.size], [0, 0], valid_shape=[dim, chunk.length])
    store(matmul(all_ones, gates).exp(), gamma_last, chunk.cell * dim, 0)
    store(copy(chunk.tokens(beta, heads, 0)), beta_pad, row, 0)
    for h in range(shape.qk_heads):
        x = chunk.tokens(q, dim, h * dim)
        store(x / norm(x) * dim**-0.5, q_unit, row, h)
        x = chunk.tokens(k, dim, h * dim)
        store(x / norm(x), k_unit, row, h)
    for h in range(heads):
        store(chunk.tokens(v, width, h * width) * chunk.tokens(beta, 1, h), v_beta, row, h)
        store(copy(chunk.tokens(do, width, h * width)), do_pad, row, h)


def _local(shape, tuning, chunk, packed, eye, q_unit, k_unit, v_beta, do_pad, g_pad, beta_pad, factors, gamma_last,
           w_out, u_out, inverse_out, att_out, decay_out, p_out, r_out, m_out):  # fmt: skip
    size, dim, width, row = chunk.size, shape.key_dim, shape.value_dim, chunk.cell * chunk.size
    tril, strict = constant(packed, TRIL), constant(packed, STRICT)
    pypto.set_vec_tile_shapes(tuning.vec_rows, max(dim, width, size))
    for h in range(shape.qk_heads):
        q, k = block(q_unit, row, size, h, dim), block(k_unit, row, size, h, dim)
        kk, qk = matmul(k, k, b_trans=True), matmul(q, k, b_trans=True)
        for j in shape.value_heads_of(h):
            g, beta = block(g_pad, row, size, j, 1), block(beta_pad, row, size, j, 1)
            gamma, to_end = block(factors, 2 * row, size, j, 1), block(factors, 2 * row + size, size, j, 1)
            # As above; differences of running sums would cancel after a few gates of -30.
            pairs = matmul(tril, strict * g).exp()
            decay = pairs * tril
            att = qk * decay
            t = inverse(kk * pairs * beta, packed)
            w, u = matmul(t, k * (beta * gamma)), matmul(t, block(v_beta, row, size, j, width))
            k_end = k * to_end
            p = eye * block(gamma_last, chunk.cell * dim, dim, j, 1) - matmul(k_end, w, a_trans=True)
            r = matmul(k_end, u, a_trans=True)
            m = matmul(q * gamma - matmul(att, w), block(do_pad, row, size, j, width), a_trans=True)
            for x, out in ((w, w_out), (u, u_out), (t, inverse_out), (att, att_out), (decay, decay_out)):
                store(x, out, row, j)
            for x, out in ((p, p_out), (r, r_out), (m, m_out)):
                store(x, out, chunk.cell * dim, j)


def _carry(shape, tuning, cu_seqlens, b, h, initial_state, d_final_state, p, r, m, s_out, d_next_out, dinitial_state):
    dim, width = shape.key_dim, shape.value_dim
    n = chunks(cu_seqlens, b, shape.chunk_size)
    first = Chunk(cu_seqlens, b, 0, shape.chunk_size)
    pypto.set_vec_tile_shapes(tuning.carry_rows, width)
    head_row = (b * shape.value_heads + h) * dim
    s, d = pypto.tensor([dim, width], FP32, "s"), pypto.tensor([dim, width], FP32, "d")
    d[:] = copy(pypto.view(d_final_state, [dim, width], [head_row, 0]))
    s_new = copy(pypto.view(initial_state, [dim, width], [head_row, 0]))
    store(s_new, s_out, first.state * dim, h)
    s[:] = s_new
    for i in pypto.loop(n, name="carry_chunk", idx_name="i"):
        forward, backward = (first.cell + i) * dim, (first.cell + n - 1 - i) * dim
        store(copy(d), d_next_out, backward, h)
        s_new = matmul(block(p, forward, dim, h, dim), s) + block(r, forward, dim, h, width)
        store(s_new, s_out, (first.state + i + 1) * dim, h)
        s[:] = s_new
        d[:] = matmul(block(p, backward, dim, h, dim), d, a_trans=True) + block(m, backward, dim, h, width)
    pypto.assemble(copy(d), [head_row, 0], dinitial_state)


def _gradients(shape, tuning, chunk, packed, ones, q_raw, k_raw, v_raw, q_unit, k_unit, do_pad, beta_pad,
               factors, w_in, u_in, inverse_in, att_in, decay_in, s_in, d_next_in,
               dq, dk, dv, dg, dbeta):  # fmt: skip
    size, dim, width = chunk.size, shape.key_dim, shape.value_dim
    row, state_row = chunk.cell * size, chunk.state * dim
    triu, strict = constant(packed, TRIU), constant(packed, STRICT)
    for h in range(shape.qk_heads):
        q, k = block(q_unit, row, size, h, dim), block(k_unit, row, size, h, dim)
        dq_sum = dk_sum = None
        for j in shape.value_heads_of(h):
            pypto.set_vec_tile_shapes(tuning.vec_rows, max(dim, width, size))
            beta, to_end = block(beta_pad, row, size, j, 1), block(factors, 2 * row + size, size, j, 1)
            t, att, decay = (block(x, row, size, j, size) for x in (inverse_in, att_in, decay_in))
            do, u, w = block(do_pad, row, size, j, width), block(u_in, row, size, j, width), block(w_in, row, size, j, dim)
            s, after = block(s_in, state_row, dim, j, width), block(s_in, state_row + dim, dim, j, width)
            d_next = block(d_next_in, chunk.cell * dim, dim, j, width)

            v_new = u - matmul(w, s)
            dv_new = matmul(att, do, a_trans=True) + matmul(k * to_end, d_next)
            dv_beta = matmul(t, dv_new, a_trans=True)
            # dA = -dVb U^T - dWb W^T with dWb = -dVb S^T is -dVb (U - W S)^T.
            b = matmul(dv_beta, v_new, b_trans=True) * decay * strict * -1.0
            c = matmul(do, v_new, b_trans=True) * decay
            k_beta, carried = k * beta, _row_sum(d_next * after)

            # From here on only the tokens that exist. A valid shape holds when it is given to a product or to a fresh
            # view of global memory; given to the result of a vector operation, or used in tiles of two heights, it is lost.
            q_, k_ = (chunk.existing(block(x, row, size, h, dim)) for x in (q_unit, k_unit))

            def column(matrix, at):
                return chunk.existing(block(matrix, at, size, j, 1))

            def product(*operands, **transposed):
                return chunk.existing(matmul(*operands, **transposed))

            dv_beta_ = chunk.existing(dv_beta)
            # Tiles of two heights, so that PyPTO does not make one task of all that follows: it would not fit in UB.
            columns = max(dim, width, size)
            rows = min(size, tuning.final_tile // columns)
            pypto.set_vec_tile_shapes(2 * rows, columns)
            dq_head = product(c, k) + product(do, s, b_trans=True) * column(factors, 2 * row)
            qdq = _row_sum(q_ * dq_head)
            pypto.set_vec_tile_shapes(rows, columns)
            y = product(b, k) - product(dv_beta, s, b_trans=True) * column(factors, 2 * row)
            z = (product(b, k_beta, a_trans=True) + product(c, q, a_trans=True)
                 + product(v_new, d_next, b_trans=True) * column(factors, 2 * row + size))  # fmt: skip
            beta = column(beta_pad, row)
            yk = _row_sum(y * k_)
            d_total = qdq + beta * yk - _row_sum(z * k_)
            dk_head = y * beta + z
            suffix = pypto.view(triu, [size, size], [0, 0], valid_shape=[chunk.length, chunk.length])
            dg_head = matmul(suffix, d_total) + product(pypto.view(ones, [size, dim], [0, 0]), carried)
            v = chunk.tokens(v_raw, width, j * width)
            chunk.store(dg_head, dg, j)
            chunk.store(_row_sum(dv_beta_ * v) + yk, dbeta, j)
            chunk.store(dv_beta_ * beta, dv, j * width)
            dq_sum, dk_sum = (dq_head, dk_head) if dq_sum is None else (dq_sum + dq_head, dk_sum + dk_head)
        _unit_grad(shape, chunk, q_raw, dq_sum * dim**-0.5, dq, h)
        _unit_grad(shape, chunk, k_raw, dk_sum, dk, h)


def _unit_grad(shape, chunk, raw, d, output, h):
    """Writes the gradient of x from d, that of x / |x|: (d - x_hat <x_hat, d>) / |x|."""
    x = chunk.tokens(raw, shape.key_dim, h * shape.key_dim)
    length = norm(x)
    unit = x / length
    chunk.store((d - unit * _row_sum(unit * d)) / length, output, h * shape.key_dim)


def _row_sum(x):
    return x.sum(-1, keepdim=True)
