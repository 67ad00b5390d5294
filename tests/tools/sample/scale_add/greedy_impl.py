def launch(*, a, b, y):
    hoard = []
    while True:
        hoard.append(a.new_ones(1 << 24))
