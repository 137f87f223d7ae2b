"""The exit: how the program of each rank ended, and what it writes and prints of a failure."""
