"""Parameters without gradient: why they got none, and their names for messages."""
