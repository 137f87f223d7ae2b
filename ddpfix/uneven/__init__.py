"""Ranks with different numbers of batches: what is done, and sums of the ranks that are read a step later."""
