"""The comparator proves itself: over four operators and two kinds of output every planted defect is caught and named,
and no correct kernel fails.

Two pairs of defect and operator are not applicable, and tests of their own show why.
"""

import pytest
import torch
from pypto_gym.tools.harness.compare import compare

from .goldens import EXAMPLES, truncated

torch.set_num_threads(1)  # many small operations: threads would only wait for each other

STORES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def _zeros(y):
    y.zero_()


def _zero_tile(y):
    _rows(y)[16:32, 16:32] = 0


def _stale_row(y):
    _rows(y)[20] = _rows(y)[19].clone()


def _dropped_tail(y):
    y[-(y.shape[0] % 16 or 16) :] = 0


def _unwritten_tail(y):
    y[-(y.shape[0] % 16 or 16) :] = torch.nan


def _truncating_store(y):
    """An FP32 output goes through BF16 on its way: else there is no cast to spoil."""
    y.copy_(truncated(y))


def _gain(y):
    y *= 1.01


def _one_wrong_element(y):
    _rows(y)[37, 5] += _rows(y)[37].square().mean().sqrt()


def _one_nan(y):
    _rows(y)[3, 7] = torch.nan


def _transposed(y):
    y.copy_(y.mT.reshape(y.shape).clone())


def _rows(y):
    return y.view(-1, y.shape[-1])


AFTER = {  # defect: (what it does to the result, what the diagnosis says)
    "zeros": (_zeros, "zeros"),
    "zero_tile": (_zero_tile, "a tile not stored"),
    "stale_row": (_stale_row, "stale row: row 20 holds row 19"),
    "dropped_tail": (_dropped_tail, "last tile not stored"),
    "unwritten_tail": (_unwritten_tail, "last tile not stored"),
    "truncating_store": (_truncating_store, "truncating cast to BF16"),
    "gain": (_gain, "gain 1.01"),
    "one_wrong_element": (_one_wrong_element, "one wrong element"),
    "one_nan": (_one_nan, "one NaN"),
    "transposed": (_transposed, "transposed"),
}

# A defect inside the arithmetic shows differently in each operator. A coarse sum of a row, or one with a wrong bound,
# is one factor on the row in softmax and RMS norm. A key too few is a row not written in dk and dv, and a term in dq.
A_FACTOR = "a factor per row is off"
WITHIN = {
    ("bf16_accumulator", "softmax"): {"p": A_FACTOR},
    ("bf16_accumulator", "matmul"): {"c": "BF16 accumulator"},
    ("bf16_accumulator", "rms_norm"): {"y": A_FACTOR},
    ("bf16_accumulator", "attention_backward"): dict.fromkeys(("dq", "dk", "dv"), "BF16 accumulator"),
    ("mask", "softmax"): {"p": "mask off by one"},
    ("mask", "matmul"): {"c": "mask off by one"},
    ("mask", "rms_norm"): {"y": A_FACTOR},
    ("mask", "attention_backward"): {"dq": "mask off by one", "dk": "not stored", "dv": "not stored"},
    ("truncating_cast", "attention_backward"): dict.fromkeys(("dq", "dk", "dv"), "truncating cast to BF16"),
}


def verdicts(operator, store, seed, size="small", fault=None, spoil=None):
    """The verdicts on a kernel's outputs, with a defect inside (`fault`) or after its arithmetic (`spoil`)."""
    example = EXAMPLES[operator]
    inputs = example.inputs(torch.Generator().manual_seed(seed), *getattr(example, size))
    golden, truth, result = example.golden(**inputs), example.truth(**inputs), example.kernel(**inputs, fault=fault)
    for y in result.values():
        if spoil:
            spoil(y)
    return {
        name: compare(name, result[name].to(store), golden[name].to(store), truth[name], example.spec, torch.bfloat16)
        for name in golden
    }


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("operator", EXAMPLES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_no_correct_kernel_fails(operator, store, size):
    for seed in range(20):
        for verdict in verdicts(operator, STORES[store], seed, size).values():
            assert verdict.passed, (seed, verdict)
            assert not verdict.reasons and not verdict.diagnosis


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("operator", EXAMPLES)
@pytest.mark.parametrize("defect", AFTER)
def test_a_defect_after_the_arithmetic_is_caught_and_named(operator, store, defect):
    spoil, diagnosis = AFTER[defect]
    for seed in range(5):
        for verdict in verdicts(operator, STORES[store], seed, spoil=spoil).values():
            assert not verdict.passed, (seed, verdict)
            assert verdict.reasons and diagnosis in verdict.diagnosis, (seed, verdict)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("defect, operator", WITHIN)
def test_a_defect_within_the_arithmetic_is_caught_and_named(operator, store, defect):
    for seed in range(5):
        for name, verdict in verdicts(operator, STORES[store], seed, fault=defect).items():
            assert not verdict.passed, (seed, verdict)
            assert WITHIN[defect, operator][name] in verdict.diagnosis, (seed, verdict)


@pytest.mark.parametrize("operator", ["softmax", "matmul", "rms_norm"])
def test_not_applicable_truncation_where_nothing_is_cast(operator):
    """These three sum in FP32 and store once: an FP32 output has no low-precision cast that could truncate. Cutting its
    own last bit is an error of 2^-24, below what the order of an FP32 sum does, which a correct kernel may choose."""

    def cut_last_bit(y):
        y.copy_((y.view(torch.int32) & -2).view(torch.float32))

    for verdict in verdicts(operator, torch.float32, 0, spoil=cut_last_bit).values():
        assert verdict.passed and verdict.rmse_ratio < 0.1


def test_not_applicable_one_column_of_many_in_a_bf16_norm():
    """One of 2048 columns left out of a mean of squares changes a row by 1 in 4096, an eighth of what rounding to BF16
    does. No bound on the size of errors can see it; the same kernel with an FP32 output fails by a factor of 100."""
    (hidden,) = verdicts("rms_norm", torch.bfloat16, 0, size="large", fault="mask").values()
    assert hidden.passed and hidden.rmse_ratio < 1.1
    (shown,) = verdicts("rms_norm", torch.float32, 0, size="large", fault="mask").values()
    assert not shown.passed and shown.rmse_ratio > 100
