"""The hang paragraph: which ranks do not wait while others do, and the sentences about it."""
