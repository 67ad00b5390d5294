"""The kernel of `recurrent_gated_delta_rule_impl.py` with the loop body of Atlas A3; DESIGN.md says what it brought."""

from . import recurrent_gated_delta_rule_impl as general

TUNING = general.Tuning(heads=2)


def launch(**tensors):
    """As `recurrent_gated_delta_rule_impl.launch`."""
    general.launch(**tensors, tuning=TUNING)
