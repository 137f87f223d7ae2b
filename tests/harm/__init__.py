"""Programs that are right in plain torch, each run plain and under ddpfix, which has to leave them as they are."""
