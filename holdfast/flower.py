"""Holdfast for users of Flower: an experiment as a Flower app, and its parts for apps of one's own."""

from __future__ import annotations

from holdfast.engines.flower.inprocess import InProcessGrid
from holdfast.engines.flower.moderator import play_over, server_app
from holdfast.engines.flower.site import client_app

__all__ = ["InProcessGrid", "client_app", "play_over", "server_app"]
