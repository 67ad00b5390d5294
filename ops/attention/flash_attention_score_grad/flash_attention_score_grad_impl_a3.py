"""flash_attention_score_grad tuned for Atlas A3: the same two passes with merged vector and cube tasks."""

import pypto

from .flash_attention_score_grad_impl import RUNTIME, backward, run, two_passes

kernel = pypto.frontend.jit(
    runtime_options=RUNTIME,
    pass_options={"vec_nbuffer_setting": {-1: 3}, "cube_l1_reuse_setting": {-1: 8}},
)(backward)


def launch(**tensors):
    """Writes dq, dk and dv; arguments as in flash_attention_score_grad.py, contiguous."""
    run(kernel, two_passes, **tensors)
