"""Legal and good tile shapes: for matmul, for the vector operations and for the convolution's backward input.

Each of the modules `matmul`, `vector`, `conv_backward_input` and `conv_gemm` (the same operation as an implicit GEMM)
has the same three functions:

    check(problem, tile)     every rule that the tile breaks, with the numbers and the nearest legal value; [] when legal
    estimate(problem, tile)  what the tile costs by the model of `core`
    solve(problem, top=10)   the legal tiles, cheapest first

README.md states the rules, the model, and how far the model is to be believed.
"""
