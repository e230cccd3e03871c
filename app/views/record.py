"""A run record as one JSON object, for the API.

Gradio's Python client takes any dict with a string under "path" for a file to download, and so
fails on a token of ours. Over the API a token's `path` is therefore a list of its letters.
"""

from __future__ import annotations

import json
from typing import Any

from river_core.records import RunRecord


def record_json(record: RunRecord) -> dict[str, Any]:
    """Keys header, prompt, tokens, updates, full_trace, summary, text; fields as in records.md,
    but for `path`, which is a list of letters."""
    found: dict[str, list[Any]] = {}
    for line in record.lines():
        value = json.loads(line)
        found.setdefault(value.pop("type"), []).append(value)
    for token in found.get("token", []):
        token["path"] = list(token["path"])
    traces = found.get("full_trace")
    return {
        "header": found["header"][0],
        "prompt": found["prompt"][0],
        "tokens": found.get("token", []),
        "updates": found.get("update", []),
        "full_trace": traces[0]["similarities"] if traces else None,
        "summary": found["summary"][0],
        "text": record.text,
    }
