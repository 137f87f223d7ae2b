"""What applies here: the compatibility matrix, what is installed, the settings, and the decisions that follow."""
