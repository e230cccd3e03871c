"""A page part that our script fills: a fixed template, no value in it."""

from __future__ import annotations

from typing import Any


def part(name: str) -> dict[str, Any]:
    """Arguments of the `gr.HTML` whose element the script's part `name` fills."""
    script = (
        f'const begin = () => window.River.mount("{name}", element, props, watch, trigger);\n'
        'if (window.River) begin(); else addEventListener("river-script", begin, {once: true});'
    )
    return {
        "html_template": f'<div class="rv" data-part="{name}"></div>',
        "js_on_load": script,
        "apply_default_css": False,
        "elem_id": f"rv-{name}",
    }
