"""What is imported is declared; what is declared is explained and pinned."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
OWN = {"mlx_server", "tests", "scripts"}


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        content: dict[str, Any] = tomllib.load(file)["project"]
    return content


def names(requirements: Iterable[str]) -> set[str]:
    """Distribution names, normalised."""
    return {re.split(r"[\[<>=;! ]", text, maxsplit=1)[0].lower().replace("_", "-") for text in requirements}


def imported(folder: str) -> dict[str, Path]:
    """Top-level names of other projects' modules, each with a file that imports it."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            else:
                continue
            found.update({module.split(".")[0]: path for module in modules})
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names | OWN}


@pytest.mark.parametrize(("folder", "extras"), [("mlx_server", ()), ("tests", ("test", "bench"))])
def test_imports_are_declared(folder: str, extras: tuple[str, ...]) -> None:
    about = project()
    declared = names(about["dependencies"])
    for extra in extras:
        declared |= names(about["optional-dependencies"][extra])
    distributions = packages_distributions()
    for module, path in imported(folder).items():
        providers = names(distributions.get(module, [module]))
        assert providers & declared, f"{path} imports {module}, which pyproject.toml does not declare"


def declared_for_make() -> set[str]:
    about = project()
    extras = about["optional-dependencies"]
    return names([*about["dependencies"], *extras["test"], *extras["bench"], *extras["dev"]]) - {about["name"]}


def test_dependencies_are_pinned() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = names(line for line in constraints if not line.startswith("#"))
    assert declared_for_make() <= pinned, "run 'make constraints'"


def test_dependencies_are_explained() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for name in declared_for_make():
        assert re.search(rf"^\|[^|]*\b{re.escape(name)}\b", page, re.MULTILINE), f"docs/dependencies.md lacks {name}"


def test_constraints_name_no_address() -> None:
    assert "://" not in (ROOT / "constraints.txt").read_text()
    assert " @ " not in (ROOT / "constraints.txt").read_text()
