"""A job that hangs: which rank is late, where, and why, before any time-out ends it."""
