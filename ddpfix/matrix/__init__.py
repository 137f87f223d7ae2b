"""What applies here: the compatibility matrix, what is installed, and the decisions that follow."""
