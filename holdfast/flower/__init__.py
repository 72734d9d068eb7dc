"""Holdfast for users of Flower: an experiment as a Flower app, and its parts for apps of one's own.

Flower itself is imported with the first of these names that is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.flower.deploy.site import client_app
    from holdfast.flower.engine.inprocess import InProcessGrid
    from holdfast.flower.engine.moderator import play_over, server_app
    from holdfast.flower.parts.mods import digest_mod, peer_test_mod
    from holdfast.flower.parts.strategies import FedDig, FedTest

__all__ = [
    "FedDig",
    "FedTest",
    "InProcessGrid",
    "client_app",
    "digest_mod",
    "peer_test_mod",
    "play_over",
    "server_app",
]

_HOMES = {
    "FedDig": "parts.strategies",
    "FedTest": "parts.strategies",
    "InProcessGrid": "engine.inprocess",
    "client_app": "deploy.site",
    "digest_mod": "parts.mods",
    "peer_test_mod": "parts.mods",
    "play_over": "engine.moderator",
    "server_app": "engine.moderator",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast.flower' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.flower.{_HOMES[name]}"), name)
