"""The HTML report of a run and its summary."""
