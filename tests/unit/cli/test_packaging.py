"""What is imported is declared; what is declared is explained and pinned; what is built holds what it must."""

import ast
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: 'make dev'")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True, timeout=100)
    return folder


def sources() -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / "mlx_server").rglob("*.py")}


def data() -> set[str]:
    """Of the package, what is no module: the embedded model, pages of the dashboard and the like."""
    files = {path for path in (ROOT / "mlx_server").rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    return {str(path.relative_to(ROOT)) for path in files}


def test_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as wheel:
        held = set(wheel.namelist())
        (info,) = {name.split("/")[0] for name in held if ".dist-info/" in name}
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
        metadata = wheel.read(f"{info}/METADATA").decode()
    assert {"mlx_server/demo_model/model.safetensors", "mlx_server/py.typed"} <= data() & held
    assert sources() | data() == {name for name in held if not name.startswith(info)}
    assert "mlx-serve = mlx_server.cli.main:main" in entry_points
    for requirement in project()["dependencies"]:
        assert f"Requires-Dist: {re.split('[<>=;]', requirement)[0].strip()}" in metadata


def test_sdist_can_be_built_and_tested(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        held = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert sources() | data() <= held
    assert {"pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md", "docs/operations.md"} <= held
    assert {"launchd/local.mlx-serve.agent.plist", "packaging/homebrew/mlx-serve.rb", "tests/conftest.py"} <= held
    assert not [name for name in held if "__pycache__" in name or name.startswith((".venv", ".git/", "dist/"))]


def test_homebrew_formula_is_of_this_project() -> None:
    """Version, address and checksum are filled in at a release; what else it says must be so."""
    formula = (ROOT / "packaging" / "homebrew" / "mlx-serve.rb").read_text()
    assert re.findall(r"@(\w+)@", formula) == ["VERSION", "SHA256"]
    about = project()
    assert f'license "{about["license"]}"' in formula
    (description,) = re.findall(r'desc "([^"]+)"', formula)  # Homebrew's have no article
    assert about["description"].lower() == f"a {description}".lower()
    for name in about["scripts"]:
        assert f'libexec/"bin/{name}"' in formula
    (python,) = set(re.findall(r"python@(3\.\d+)", formula))
    assert tuple(map(int, python.split("."))) >= (3, 11)
