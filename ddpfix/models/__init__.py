"""What ddpfix knows of a model: hooks before wrapping, names of parameters, recomputed forwards."""
