"""What ranks tell each other, a room a subject (docs/dev/architecture.md)."""
