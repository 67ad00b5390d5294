"""Finds in a kernel's console output why it failed: PyPTO's last exception often names a consequence, not the cause."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FIRST = re.compile(r"ERROR:root:Record function \w+ failed: (.*?)(?=\n\S+\.so\(|\n\[|\n\n|\Z)", re.S)
_LOGGED = re.compile(r"^\[ERROR\] PYPTO\(\d+\):\S+ \S+ \[[^\]]*\]\[[^\]]*\]:\s*(.*)$", re.M)
_PLACE = re.compile(r"^ERROR\s+(\S+?):(\d+):\d+:", re.M)
_FRAME = re.compile(r"\S+\.so\(.*")


def sentence(log: str, most: int = 400) -> str:
    """The cause in one line, with the place in the kernel's file where there is one; '' when the log does not tell.

    A function that failed to trace is closed by PyPTO and fails again, so the first report counts. "Run pass failed"
    hides its reason, which stands in PyPTO's own log (ASCEND_SLOG_PRINT_TO_STDOUT).
    """
    text = _COLOUR.sub("", log)
    logged = [line for line in _LOGGED.findall(text) if "tensor_graph Verify" not in line]
    first = _FIRST.search(text)
    parts = [first[1]] if first else []
    if logged and (not first or "Run pass failed" in first[1]):
        parts.append(logged[0])
    if not parts:
        return ""
    place = _PLACE.search(text)
    cause = " ".join(_FRAME.sub("", ": ".join(parts)).split())
    if len(cause) > most:
        cause = cause[:most] + " …"
    return f"{cause} (at {place[1]}:{place[2]})" if place else cause
