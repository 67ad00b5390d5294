"""Collects the pages of every sequence into packed keys and values, tuned for Atlas A3: eight moves share a task.

The compiler makes a task of every move, and handing out a task takes longer than a core needs for its share of the bytes.
"""

import pypto

from .gather_pa_kv_cache_impl import RUNTIME, gather, run

UNROLL = (2, 1)
"""Pages of one graph; only moves of one graph are merged. Of 128 tokens with 8 heads of 128, each is four moves."""
MERGED = {-2: 1, -1: 8}
"""-2: tasks that share neither a source nor a destination may be merged, too; without it these moves stay apart."""

gather_pa_kv_cache_merged_kernel = pypto.frontend.jit(
    runtime_options=RUNTIME,
    pass_options={"vec_nbuffer_setting": MERGED},
)(gather)


def launch(**tensors):
    """Writes k and v; arguments as in gather_pa_kv_cache.py."""
    run(gather_pa_kv_cache_merged_kernel, UNROLL, **tensors)
