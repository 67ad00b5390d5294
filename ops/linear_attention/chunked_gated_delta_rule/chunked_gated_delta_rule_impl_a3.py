"""Chunked gated delta rule, forward pass, tuned for Atlas A3: the kernel of `_impl.py` with options of its own.

DESIGN.md has what each option is worth in the cost model.
"""

from .chunked_gated_delta_rule_impl import Tuning
from .chunked_gated_delta_rule_impl import launch as general

TUNING = Tuning(
    carry_rows=64,
    passes={"cube_l1_reuse_setting": {-1: 4}, "cube_nbuffer_setting": {-1: 2}, "vec_nbuffer_setting": {-1: 4}},
)


def launch(**tensors):
    """As `chunked_gated_delta_rule_impl.launch`."""
    general(**tensors, tuning=TUNING)
