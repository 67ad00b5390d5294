"""Attention of each query to its selected keys, tuned for Atlas A3: the same loops with merged tasks."""

import pypto

from .sparse_attention_impl import RUNTIME, forward, run

kernel = pypto.frontend.jit(
    runtime_options=RUNTIME,
    pass_options={"cube_l1_reuse_setting": {-1: 8}, "vec_nbuffer_setting": {-1: 4}},
)(forward)


def launch(**tensors):
    """Writes o, l and m, which come zeroed; arguments as in sparse_attention_golden.py."""
    run(kernel, **tensors)
