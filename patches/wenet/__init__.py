"""WeNet: epochs that end on every rank, unused parameters, options that arrive, and imports that new torch broke."""
