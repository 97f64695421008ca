"""What the log looks like: lines for people, or an object of JSON in each."""

import json
import logging
from datetime import UTC, datetime

LOG_FORMATS = ("text", "json")
TEXT = "%(asctime)s %(levelname)s %(processName)s: %(message)s"
FIELDS = "fields"  # of a record: what its message says, by name


class JSONLines(logging.Formatter):
    """{"time", "level", "process", "message"}, and the fields of a record that has some."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.processName,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_log(log_format: str = "text") -> None:
    """To stderr; a process that has a log keeps it."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLines() if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
