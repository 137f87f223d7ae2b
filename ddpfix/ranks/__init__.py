"""What ranks tell each other, and what looks at a model before it is wrapped."""
