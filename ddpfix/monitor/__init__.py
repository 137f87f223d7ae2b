"""The threads of ddpfix and the end of a process: who has failed and why, and which ranks wait for which."""
