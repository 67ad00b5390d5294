"""Runs a case of an operator and judges it: records -> cases -> golden -> backends -> compare -> report."""

from pypto_gym.tools.harness.records import Executions, Operator, Output, Work

__all__ = ["Executions", "Operator", "Output", "Work"]
