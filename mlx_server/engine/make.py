"""Which engine to make, by the settings."""

from __future__ import annotations

from pathlib import Path

from mlx_server.core.settings import Settings
from mlx_server.engine.client import EngineClient, LoadProgress
from mlx_server.engine.inproc import InProcessEngine
from mlx_server.engine.supervisor import SupervisedEngine


def make_engine(settings: Settings, model_path: Path, on_progress: LoadProgress) -> EngineClient:
    """Not started. The model is known under the name it is served with."""
    name = settings.served_model_name or settings.model
    if settings.engine == "inprocess":
        return InProcessEngine(settings, model_path, name, on_progress)
    return SupervisedEngine(settings, model_path, name, on_progress)
