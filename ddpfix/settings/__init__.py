"""Settings: their names and values, their sources, and the names that were removed."""
