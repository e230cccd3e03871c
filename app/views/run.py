"""What the page knows of one run: two lanes of records and where the work stands.

The runner writes these, the other views read them. Nothing is computed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from river_core.records import CacheUpdate, PromptRecord, RunSummary, TokenRecord

from .policies import leaves, policy_name

PHASES = (
    "idle",
    "waiting",
    "loading",
    "prompt",
    "decoding",
    "tracing",
    "done",
    "stopped",
    "failed",
)
LANES = ("upper", "lower")


@dataclass
class Lane:
    """One answer while it is decoded. `lines` has one packed line per token (snapshot.py)."""

    name: str  # "upper" or "lower"
    policy: str
    num_layers: int = 0
    phase: str = "idle"
    prompt: PromptRecord | None = None
    tokens: list[TokenRecord] = field(default_factory=list)
    summary: RunSummary | None = None
    lines: list[str] = field(default_factory=list)
    updates: list[CacheUpdate] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)  # packed similarities of all layers, per token

    @property
    def token_ids(self) -> list[int]:
        """Ids of the tokens so far."""
        return [t.token_id for t in self.tokens]

    @property
    def exits(self) -> bool:
        """Whether this lane's tokens may leave before the last layer."""
        return leaves(self.policy)

    @property
    def title(self) -> str:
        """The policy, as the page calls it."""
        return policy_name(self.policy)


@dataclass
class ModelCard:
    """What the top bar says of the model: `state` is "loading", "ready" or "failed"."""

    state: str
    message: str
    name: str
    origin: str = ""
    device: str = ""
    num_layers: int = 0
    threshold: float | None = None  # the model's default
    capacity: int | None = None
    scale: tuple[float, float] = (0.4, 0.001)  # lowest threshold and step of the slider
    advice: str = ""  # what calibration says of the threshold
    notes: tuple[str, ...] = ()
    river: str = ""  # how the river's weights are stored
    entry_layer: int = 2
    resident: int = 0


@dataclass
class Run:
    """Both lanes of one press on Run; `error` is one sentence, or empty."""

    id: str
    phase: str = "waiting"
    upper: Lane = field(default_factory=lambda: Lane("upper", "river"))
    lower: Lane = field(default_factory=lambda: Lane("lower", "backbone"))
    entry_layer: int = 2
    notes: tuple[str, ...] = ()
    ahead: int = 0  # runs of others that come first
    waited: float = 0.0  # seconds in the present phase
    error: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Lane name -> tokens so far, and "lane.updates" -> later changes of its cache."""
        updates = {f"{lane.name}.updates": len(lane.updates) for lane in self.lanes}
        return {lane.name: len(lane.lines) for lane in self.lanes} | updates

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """The lane above, and the one that it is compared with."""
        return (self.upper, self.lower)
