"""Write the property lists of launchd/ as `mlx-serve service install` would, with YOU in place of the user's name."""

import argparse
import dataclasses
import sys
from pathlib import Path

from mlx_server.core.settings import Settings
from mlx_server.services.service.definition import make_spec
from mlx_server.services.service.launchd import LABEL, render_plist

FOLDER = Path(__file__).resolve().parents[1] / "launchd"
USER = "YOU"
HOME = Path("/Users") / USER
USERS = {f"{LABEL}.agent.plist": None, f"{LABEL}.daemon.plist": USER}


def template(user: str | None) -> bytes:
    log = HOME / "Library" / "Logs" / "mlx-serve" / "mlx-serve.log"
    settings = Settings.model_construct(drain_s=15.0, max_connections=512, log_file=None)
    spec = make_spec(HOME / ".local" / "bin" / "mlx-serve", settings, {}, None, {"HOME": str(HOME)}, log)
    return render_plist(dataclasses.replace(spec, version="VERSION"), user)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--print", choices=USERS, help="show this one and write nothing")
given = parser.parse_args()
if given.print:
    sys.stdout.buffer.write(template(USERS[given.print]))
else:
    for name, user in USERS.items():
        (FOLDER / name).write_bytes(template(user))
