import time


def launch(*, a, b, y):
    time.sleep(1000)
