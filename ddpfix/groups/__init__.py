"""torch's process groups: names, collectives and time limits."""
