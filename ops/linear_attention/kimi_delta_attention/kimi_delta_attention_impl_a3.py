"""The kernel of `kimi_delta_attention_impl.py` with the options of Atlas A3; DESIGN.md says what each brought."""

from . import kimi_delta_attention_impl as general

TUNING = general.Tuning(
    carry_rows=128,  # one vector task a step of the serial loop instead of two
    passes={
        "cube_nbuffer_setting": {-1: 2},  # two heads share a cube task
        "vec_nbuffer_setting": {-1: 2},  # and a vector task
    },
)


def launch(**tensors):
    """As `kimi_delta_attention_impl.launch`."""
    general.launch(**tensors, tuning=TUNING)
