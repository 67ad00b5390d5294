"""Runs a case of an operator and judges it: records -> cases -> golden -> backends -> compare -> report."""

__all__ = ["Executions", "Operator", "Output", "Work"]


def __getattr__(name: str):
    # Imported when asked for: the records need torch, and the command line starts other things before it waits for that.
    if name in __all__:
        from pypto_gym.tools.harness import records

        return getattr(records, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
