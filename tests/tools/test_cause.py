"""What the user is told of a kernel that PyPTO refuses."""

import pytest

from pypto_gym.tools.harness.backends import cause

REFUSED = """noise
ERROR:root:Record function k failed: RuntimeError: Errcode: F21004!
op [ADDS]tile shape not set, func Operation, file operation.cpp, line 184
libtile.so(npu::tile_fwk::Operation()+0x1) [0x7f]
lib2.so(+0x2) [0x7f]

\x1b[1m\x1b[91mERROR\x1b[0m \x1b[1m/home/me/k_impl.py:11:8:\x1b[0m RuntimeError: INTERNAL BUG
"""

PASS_FAILED = """[ERROR] PYPTO(1):2026-11-29 16:17:27.587 [flow_verifier.cpp:107][VERIFY]:ErrCode: FB4001! tensor_graph Verify for 3
[ERROR] PYPTO(1):2026-11-29 16:17:28.000 [alloc.cpp:7][PASS]:Alloc tensor [56] size [131072] exceeds MEM_L0B size [65536]!
[ERROR] PYPTO(1):2026-11-29 16:17:28.001 [pass.cpp:9][PASS]:Run pass failed
ERROR:root:Record function k failed: RuntimeError: Errcode: FFFFFF!
Run pass failed., func RunPass, file x.cpp, line 1

"""


@pytest.mark.parametrize(
    "log, sentence",
    [
        ("all is well\n", ""),
        (REFUSED, "RuntimeError: Errcode: F21004! op [ADDS]tile shape not set, func Operation, file operation.cpp, line 184 (at /home/me/k_impl.py:11)"),
        (PASS_FAILED, "RuntimeError: Errcode: FFFFFF! Run pass failed., func RunPass, file x.cpp, line 1: Alloc tensor [56] size [131072] exceeds MEM_L0B size [65536]!"),
        ("[ERROR] PYPTO(1):2026-11-29 16:17:27.5 [f.cpp:1][VERIFY]:ErrCode: FB4001! tensor_graph Verify for 3\n", ""),
    ],
    ids=["nothing", "the first report and the user's line", "the reason of a failed pass", "comparison with unset outputs"],
)  # fmt: skip
def test_the_cause(log, sentence):
    assert cause.sentence(log) == sentence
