"""The reader of blocks itself."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import blocks

PAGE = """
```python run cost
assert pypto.loop
```

1. In a list:

   ```python fails=F21004 fails="two words"
   pypto.experimental.set_operation_options(combine_axis=pypto.DT_FP32.x)
   ```

```sh
./gym list
```

```python
unmarked
```
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_marks_are_read(page):
    run, fails, unmarked = blocks.find(page)
    assert (run.kind, run.cost, run.line, run.id) == ("run", True, 2, "page:2")
    assert (fails.kind, fails.fails) == ("fails", ("F21004", "two words"))
    assert fails.source.startswith("pypto.")  # without the list's indent
    assert unmarked.kind == ""


def test_names_are_dotted_below_pypto(page):
    assert blocks.find(page)[1].names == ["DT_FP32", "DT_FP32.x", "experimental", "experimental.set_operation_options"]


def test_an_open_fence_is_an_error(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("text\n```python run\npass\n")
    with pytest.raises(ValueError, match="page.md:2: the fence is never closed"):
        blocks.find(path)


@pytest.mark.sim
def test_what_a_block_prints_and_how_it_ends_is_seen(tmp_path):
    def execute(source, timeout=60):
        return blocks.execute(blocks.Block(tmp_path / "page.md", 7, source, "run"), timeout)

    assert execute("print('hello'); assert torch and pypto")[0] == 0
    code, text = execute("raise ValueError('no')")
    assert code == 1 and 'block.py", line 8' in text and "ValueError: no" in text
    code, text = execute("import time\ntime.sleep(30)", timeout=5)
    assert code < 0 and "died of signal 9 after 5 s" in text
