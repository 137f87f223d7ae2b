"""``python -m tests.releases``, for maintainers: what a release has changed of the code that fixes rely on."""
