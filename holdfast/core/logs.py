"""Logs as lines of JSON, for machines that collect them: `holdfast --log json ...`, or HOLDFAST_LOG=json."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

WISH = "HOLDFAST_LOG"
PLAIN, JSON = "plain", "json"


def wants_json() -> bool:
    return os.environ.get(WISH) == JSON


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger and message, the fields of an event, and an error's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {"time": when, "level": record.levelname.lower(), "logger": record.name}
        told["message"] = record.getMessage()
        told |= getattr(record, "fields", {})
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str, ensure_ascii=False)


def tell(log: logging.Logger, message: str, **fields: Any) -> None:
    """Log an event with its fields; as plain text the message is all."""
    log.info("%s", message, extra={"fields": fields})
