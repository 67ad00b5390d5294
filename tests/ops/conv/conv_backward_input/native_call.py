"""The native call as PyPTO documents it: tile shapes read back, arguments checked, a result of input_size."""

import pytest

from pypto_gym.tools import runtime


def main():
    runtime.prepare()
    import pypto

    dtype, size = pypto.DT_FP16, [1, 16, 16, 16]
    dy, w = pypto.tensor((1, 16, 16, 16), dtype, "dy"), pypto.tensor((16, 16, 3, 3), dtype, "w")
    dx = pypto.tensor((1, 16, 16, 16), dtype, "dx")
    tiles = pypto.ConvBpTileL1Info(16, 144, 16), pypto.ConvBpTileL0Info(16, 16, 16)
    with pypto.function("CONV_BP", dy, w, dx):
        pypto.set_vec_tile_shapes(16, 16, 16, 16)
        with pytest.raises(RuntimeError, match="conv_backward_input: set_convbp_input_tile_shapes was not called"):
            pypto.conv_backward_input(dy, size, w, dtype, [1, 1], [1, 1, 1, 1], [1, 1])
        pypto.set_convbp_input_tile_shapes(*tiles)
        assert pypto.get_convbp_input_tile_shapes() == tiles
        for change, error, message in (
            ({"out_dtype": pypto.DT_INT8}, TypeError, "out_dtype: got DataType.DT_INT8, takes DT_FP16 or DT_BF16"),
            ({"paddings": [1, 0, 1, 1]}, ValueError, "paddings: got [1, 0, 1, 1], takes [top, bottom, left, right]"),
            ({"input_size": [1, 16, 18, 16]}, ValueError, "input_size: got 18 along H, takes 16 to 16"),
            ({"groups": 2}, ValueError, "groups: got 2, takes 1"),
        ):
            good = {"out_dtype": dtype, "strides": [1, 1], "paddings": [1, 1, 1, 1], "dilations": [1, 1], "input_size": size}
            with pytest.raises(error) as caught:
                pypto.conv_backward_input(grad_output=dy, weight=w, **{**good, **change})
            assert message in str(caught.value)
        result = pypto.conv_backward_input(dy, size, w, dtype, [1, 1], [1, 1, 1, 1], [1, 1], groups=1)
        assert result.shape == size
        pypto.assemble(result, [0, 0, 0, 0], dx)
    with pytest.raises(RuntimeError, match="outside of pypto.function or a jit kernel"):
        pypto.get_convbp_input_tile_shapes()


if __name__ == "__main__":
    main()
