"""Holdfast for users of Flower: an experiment as a Flower app, and its parts for apps of one's own."""

from __future__ import annotations

from holdfast.engines.flower.inprocess import InProcessGrid
from holdfast.engines.flower.moderator import play_over, server_app
from holdfast.engines.flower.mods import digest_mod, peer_test_mod
from holdfast.engines.flower.site import client_app
from holdfast.engines.flower.strategies import FedDig, FedTest

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
