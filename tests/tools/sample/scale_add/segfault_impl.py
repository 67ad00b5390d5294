import ctypes


def launch(*, a, b, y):
    ctypes.string_at(0)
