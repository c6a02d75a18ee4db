"""For every test: OpenBLAS comes before MLX, whichever test module imports MLX first."""

import sys

import pytest

import mlx_server.runner  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `macos` are skipped elsewhere."""
    if sys.platform == "darwin":
        return
    for item in items:
        if item.get_closest_marker("macos") is not None:
            item.add_marker(pytest.mark.skip(reason="needs macOS"))
