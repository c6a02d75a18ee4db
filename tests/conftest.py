"""For every test: OpenBLAS comes before MLX, whichever test module imports MLX first."""

import sys
from collections.abc import Iterator

import pytest

import mlx_server.runner  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `macos` are skipped elsewhere."""
    if sys.platform == "darwin":
        return
    for item in items:
        if item.get_closest_marker("macos") is not None:
            item.add_marker(pytest.mark.skip(reason="needs macOS"))


@pytest.fixture(scope="session", autouse=True)
def _no_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever runs the tests may have API keys and settings; daemons of tests have none but those a test gives them."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.touch(mode=0o600)
    path.write_text('{"version": 1, "keys": []}')
    settings = tmp_path_factory.mktemp("settings") / "config.toml"
    settings.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLX_SERVE_KEYS_FILE", str(path))
        patch.setenv("MLX_SERVE_CONFIG", str(settings))
        yield
