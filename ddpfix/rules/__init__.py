"""Decides what the facts of ranks mean: pure functions, without torch, threads, input or output."""
