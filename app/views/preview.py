"""What the page needs to tell, without decoding, where tokens would leave at another threshold.

The estimate keeps the text: the similarities are those of one full-depth pass over it, the exit
rule is applied to them anew, and time follows the bytes of weights that are read.
"""

from __future__ import annotations

from typing import Any

from river_core.metrics import weight_bytes

from .policies import first_exit
from .readouts import live_mean_exit, live_rate
from .run import Run


def preview(run: Run) -> dict[str, Any] | None:
    """Of the upper lane; None until it has its trace, or where its exits are not by threshold.

    `trace`: a packed line per token. `first`: first layer after which a token may leave. `bytes`:
    what a token reads at exit layer 0, and more per layer. `rate`, `mean`: as measured.
    """
    lane = run.upper
    first = first_exit(lane.policy, run.entry_layer)
    if not lane.trace or first is None or lane.summary is None:
        return None
    return {
        "trace": "\n".join(lane.trace),
        "first": first,
        "bytes": weight_bytes(lane.summary.memory, lane.num_layers, run.entry_layer),
        "rate": live_rate(lane),
        "mean": live_mean_exit(lane),
    }
