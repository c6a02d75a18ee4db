"""What the daemon remembers of its requests, for whoever looks."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlx_server.api.live.live_requests import LiveRequests
from mlx_server.api.live.recent_errors import RecentErrors


@dataclass(slots=True)
class Observed:
    """Bounded, and kept whether or not somebody watches. Owned by the event loop."""

    requests: LiveRequests = field(default_factory=LiveRequests)
    errors: RecentErrors = field(default_factory=RecentErrors)
