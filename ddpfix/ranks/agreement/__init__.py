"""Before the first collective of a wrapped model all ranks compare what ddpfix does on them."""
