"""Names, collectives and time-outs of process groups."""
