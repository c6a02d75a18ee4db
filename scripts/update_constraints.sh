#!/usr/bin/env bash
# Resolve the newest versions of all dependencies in a fresh environment and write constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install '.[dev]' hatchling

{
  echo "# Versions that were resolved and tested together; written by scripts/update_constraints.sh."
  echo "# A constraint binds only where its package is installed, so Linux-only lines do no harm on macOS."
  "$venv/bin/python" -m pip --disable-pip-version-check list --format=freeze |
    grep -viE '^(mlx-server|pip|setuptools|wheel)==' | LC_ALL=C sort --ignore-case
  # The halves of mlx that are not installed here; all come in its own version.
  mlx=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("mlx"))')
  printf 'mlx-%s==%s\n' cuda-13 "$mlx" metal "$mlx"
} >constraints.txt.new
mv constraints.txt.new constraints.txt
echo "$(grep -c == constraints.txt) versions in constraints.txt"
