"""The two hosts that tests of launchers share."""

from __future__ import annotations

from typing import Iterator, Tuple

import pytest

from tests.support import hosts


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuple[hosts.Host, hosts.Host]]:
    """Two hosts, where namespaces are permitted."""
    if hosts.why_not() is not None:
        pytest.skip(f"{hosts.why_not()}; where it can be: python -m pytest --rest tests/launchers")
    with hosts.two_hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both
