"""What a service manager of an operating system can do for the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from mlx_server.services.service.definition import Invocation, ServiceSpec

Change = Literal["installed", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class ServiceState:
    """is_loaded: the manager knows the service. pid: of the daemon; None when it does not run.

    last_exit: how the daemon ended last, for a person; "" when that is not known. restarts: since it was loaded.
    """

    is_loaded: bool
    pid: int | None = None
    last_exit: str = ""
    restarts: int = 0


class ServiceManager(Protocol):
    """One service of one user. Every method may be called in every state, and raises `ServiceError` when it fails."""

    @property
    def name(self) -> str:
        """Of the manager, for a person."""

    @property
    def definition(self) -> Path:
        """The file that tells the manager what to run."""

    @property
    def default_log(self) -> Path | None:
        """Where the daemon should log; None where the manager keeps its output itself."""

    def install(self, spec: ServiceSpec) -> Change:
        """Write the definition and start it; restart it only if something has changed."""

    def uninstall(self) -> bool:
        """Stop the service and remove what `install` made. False when there was nothing."""

    def installed(self) -> Invocation | None:
        """What the definition runs; None when nothing is installed."""

    def start(self) -> None:
        """Does nothing to one that runs."""

    def stop(self) -> None:
        """Until the next start or login. Returns when the daemon has ended."""

    def restart(self) -> None:
        """Running answers may end first, as long as `drain_s` lets them."""

    def state(self) -> ServiceState:
        """As it is now."""

    def show_log(self, log_file: Path | None, lines: int, follow: bool) -> list[str]:
        """The command that prints the last lines, and with `follow` those to come."""
