"""Keys in the process group's store, a connection of our own to it, and what ranks ask each other through it."""
