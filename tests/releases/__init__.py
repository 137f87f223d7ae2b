"""``python -m tests.releases``, for maintainers: what a release has changed of the code that patches are put on.

Nothing of a release is installed, imported or run: its files are read, and compared as syntax trees. This has nothing
to do with ``torch.divergence``, which compares the replicas of a job.
"""
