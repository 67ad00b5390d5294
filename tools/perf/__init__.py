"""Simulated time of the operators: measured, put beside the roofline, kept on record, and compared with the record."""
