"""Both lanes of a run as one stream: what the model is, phases, records, whole run records.

A Space that lends its GPU runs this in another process, so all that goes in or comes out can be
pickled, the facts of the model are read where it is, and both lanes are one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from river_core.errors import RiverError

from .asked import Ask
from .card import model_card
from .views.english import Refused
from .views.policies import leaves
from .views.run import LANES

Event = tuple[str, object]  # lane, and a ModelCard, a phase, a record, or a RunRecord


def decode(
    engine: Any, model: Any, ask: Ask, control: Callable[[], Any], stopped: Callable[[], bool]
) -> Iterator[Event]:
    """Decode the lanes one after the other, then yield their RunRecords.

    `control` makes each stream's Control. A record has the similarities of all layers where the
    settings say so, else the upper lane's, unless the run was stopped. Raises RiverError.
    """
    yield "", model_card(model)
    streams: dict[str, Any] = {}
    refused: RiverError | None = None
    for lane, settings in ask.lanes.items():
        if stopped():
            yield lane, "stopped"
            continue
        yield lane, "prompt"
        try:
            stream = engine.stream(model, ask.prompt, control=control(), **settings)
            for record in stream:
                yield lane, record
        except RiverError as error:
            refused = error  # what the other lane decoded is kept all the same
            break
        streams[lane] = stream
        yield lane, "stopped" if stopped() else "done"
    for lane, stream in streams.items():
        whole = _whole(ask, lane) and not stopped()
        if whole:
            yield lane, "tracing"
        yield lane, stream.record(full_trace=whole, control=control())
    if refused is not None:
        raise refused


def _whole(ask: Ask, lane: str) -> bool:
    return bool(ask.lanes[lane].get("full_trace", lane == LANES[0] and leaves(ask.policy(lane))))


def decode_lent(engine: Any, model: Callable[[], Any], ask: Ask) -> Iterator[Event]:
    """As `decode`, where a GPU is lent for the call: the model comes from `model()`, there.

    An error is the last event, as ("error", sentence), or ("refused", sentence) where the page's
    own words tell of it: exceptions may lose their kind on the way.
    """
    try:
        yield from decode(engine, model(), ask, engine.Control, lambda: False)
    except RiverError as error:
        yield "refused" if isinstance(error, Refused) else "error", str(error)


def lent_seconds(ask: Ask) -> int:
    """For how long a GPU is asked: loading, and both answers at a rate that a slow one reaches."""
    tokens = sum(int(settings["max_new_tokens"]) for settings in ask.lanes.values())
    return min(300, 60 + tokens // 10)
