#!/usr/bin/env bash
# Install a wheel or an sdist into an empty environment and ask the embedded model a question.
# usage: scripts/try_package.sh dist/mlx_server-0.1.0-py3-none-any.whl
set -euo pipefail

package=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
constraints=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/constraints.txt
folder=$(mktemp -d)
daemon=
clean_up() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  rm -rf "$folder"
}
trap clean_up EXIT

cd "$folder" # not in the checkout: its modules would be found instead
"${PYTHON:-python3}" -m venv env
env/bin/python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" "$package"
env/bin/mlx-serve --version

env/bin/mlx-serve serve --port 0 --kv-memory 32MB >out.txt 2>err.txt &
daemon=$!
for _ in $(seq 120); do
  url=$(sed -n 's|.*base URL *\(http://[^ ]*\)/v1.*|\1|p' out.txt)
  [ -z "$url" ] || break
  kill -0 "$daemon" 2>/dev/null || { cat err.txt >&2; exit 1; }
  sleep 0.5
done
[ -n "$url" ] || { cat err.txt >&2; exit 1; }
answer=$(env/bin/mlx-serve chat --url "$url" --temperature 0 "What is the capital of France?")
echo "$answer"
case $answer in
  *Paris*) ;;
  *) echo "that is not the answer" >&2; exit 1 ;;
esac
kill -TERM "$daemon"
wait "$daemon"
daemon=
echo "$(basename "$package"): installed, answered, ended"
