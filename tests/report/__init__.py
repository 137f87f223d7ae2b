"""The report of a trace: its numbers, its page, and the page in a browser."""
