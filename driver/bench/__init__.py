"""Measurements behind `make bench`: each module has a function that returns rows of one table."""
