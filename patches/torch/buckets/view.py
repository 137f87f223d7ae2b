"""``gradient_as_bucket_view=True``, where the user asks for it (``DDPFIX_BUCKET_VIEW=1``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ddpfix import log
from ddpfix.patching.site import Site
from ddpfix.user_code import package_that_calls, whose

from ..pipeline import ddp

_KEYWORD = "gradient_as_bucket_view"


def of_buckets(site: Site, module: ModuleType, owner: Any) -> None:
    """Put the stage in: gradients are not copied out of the buckets that were reduced."""
    ddp.put(site, owner, BucketView())


class BucketView(ddp.Stage):
    place = "bucket_view"

    def arguments(self, call: ddp.Call) -> None:
        if call.arguments.setdefault(_KEYWORD, True) is False:
            setter = whose(package_that_calls())
            log.info(f"{_KEYWORD}=False is {setter} and stays (DDPFIX_BUCKET_VIEW=1 is for models without one)")
