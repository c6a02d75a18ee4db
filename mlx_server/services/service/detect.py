"""Which service manager this machine has."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from mlx_server.services.service.definition import ServiceError
from mlx_server.services.service.launchd import LaunchAgent
from mlx_server.services.service.manager import ServiceManager
from mlx_server.services.service.systemd import UserUnit


def service_manager() -> ServiceManager:
    """That of this machine and user. Raises `ServiceError` where there is none that is known."""
    if sys.platform == "darwin":
        return LaunchAgent(Path.home(), os.getuid())
    if shutil.which("systemctl") is not None:
        return UserUnit(Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"))
    raise ServiceError(
        "there is neither launchd nor systemd here; have 'mlx-serve serve' started by what supervises services on this "
        "machine (it stays in the foreground, logs to stderr and ends on SIGTERM)"
    )
