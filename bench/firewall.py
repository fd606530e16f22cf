"""Whether this machine can have network namespaces with rules of nftables in them."""

from __future__ import annotations

from bench.testbed import TestbedError, run, why_no_namespaces


def why_no_firewalls() -> str | None:
    """Why there can be none here; None if there can."""
    why = why_no_namespaces()
    if why is not None:
        return why
    try:
        run("nft", "list", "tables")
    except (TestbedError, OSError) as error:
        return f"nftables: {error}"
    return None
