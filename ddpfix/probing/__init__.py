"""What a few training steps show of a model in one process: what DDP would find, and the setting that follows."""
