"""Chunked gated delta rule, forward pass, tuned for Atlas A3: the kernel of `_impl.py` with options of its own."""

from .chunked_gated_delta_rule_impl import Tuning
from .chunked_gated_delta_rule_impl import launch as general

TUNING = Tuning()


def launch(**tensors):
    """As `chunked_gated_delta_rule_impl.launch`."""
    general(**tensors, tuning=TUNING)
