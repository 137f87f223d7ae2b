"""The trace of a run: one row an optimizer step and rank, in files that other tools read."""
