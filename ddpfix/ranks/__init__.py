"""What ranks tell each other, a room a subject (docs/architecture.md)."""
