"""Models from digests alone: what a federation learns from one message of each member, without rounds."""

from __future__ import annotations
