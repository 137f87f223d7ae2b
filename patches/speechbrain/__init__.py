"""SpeechBrain: its Brain under DDP, options that reach it, accumulation and stages that keep ranks equal."""
