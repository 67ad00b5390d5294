"""flash_attention_score_grad in one pass: every tile pair is computed once, and its dQ is added to memory atomically.

For releases that have an `atomic_add` of their own; 0.2.0 emulates it by reads and writes that wait for one another.
Sums of dQ are not the same bits in every run then.
"""

import pypto

from .flash_attention_score_grad_impl import RUNTIME, Problem, backward, dkv_pass, run

kernel = pypto.frontend.jit(
    runtime_options=RUNTIME,
    pass_options={"vec_nbuffer_setting": {-1: 3}, "cube_l1_reuse_setting": {-1: 8}},
)(backward)


def single_pass(x: Problem):
    """The body of the kernel."""
    dkv_pass(x, lambda dq, at: pypto.atomic_add(dq, at, x.dq))


def launch(**tensors):
    """Writes dq, dk and dv; arguments as in flash_attention_score_grad.py, contiguous."""
    run(kernel, single_pass, **tensors)
