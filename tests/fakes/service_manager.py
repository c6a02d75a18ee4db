"""Stand-ins for `launchctl` and `systemctl`: real programs on PATH that keep states and write down each call.

Run as a program: named `launchctl` or `systemctl` through a script of that name (`install`), with a folder for
its state in `FAKE_STATE`. Only modules that start fast are imported: tests make hundreds of calls.
"""

# ruff: noqa: PTH101, PTH103, PTH107, PTH110, PTH118, PTH119, PTH123

from __future__ import annotations

import json
import os
import sys

NOT_FOUND = 113
Values = dict  # of str to anything; typing takes long to import


def install(folder: str | os.PathLike[str], name: str) -> str:
    """Put the program into `folder`/bin, and return the folder to put before PATH."""
    programs = os.path.join(folder, "bin")
    os.makedirs(programs, exist_ok=True)
    program = os.path.join(programs, name)
    with open(__file__) as source, open(program, "w") as script:
        script.write(f"#!{sys.executable} -IS\n{source.read()}")
    os.chmod(program, 0o755)
    return programs


class State:
    """pid: of the service, 0 for none. answers: of the next calls of a verb, before it is carried out at last."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = os.path.join(folder, "state.json")
        self._calls = os.path.join(folder, "calls.txt")

    def read(self) -> Values:
        if not os.path.exists(self._path):
            return {"loaded": False, "pid": 0, "runs": 0, "lingers": 0, "answers": {}}
        with open(self._path) as file:
            return json.load(file)

    def change(self, **values: object) -> None:
        changed = self.read() | values
        with open(self._path, "w") as file:
            json.dump(changed, file)

    def note(self, call: list[str]) -> None:
        with open(self._calls, "a") as file:
            file.write(json.dumps(call) + "\n")

    def calls(self) -> list[list[str]]:
        """All calls since the last time, but for those that only ask."""
        if not os.path.exists(self._calls):
            return []
        with open(self._calls) as file:
            made = [json.loads(line) for line in file]
        os.remove(self._calls)
        return [call for call in made if call[0] != "print" and call[1:2] != ["show"]]


def launchctl(state: State, arguments: list[str]) -> int:
    verb, now = arguments[0], state.read()
    if verb == "print":
        if now["lingers"]:  # a bootout that is not over
            state.change(lingers=now["lingers"] - 1, loaded=now["lingers"] > 1, pid=0)
        if not now["loaded"]:
            sys.stderr.write("Could not find service in domain for user gui\n")
            return NOT_FOUND
        sys.stdout.write(printed(arguments[1], now))
    elif verb == "bootstrap":
        if now["loaded"]:
            sys.stderr.write("Bootstrap failed: 5: Input/output error\n")
            return 5
        import plistlib  # slow to import, and needed here only

        with open(arguments[2], "rb") as file:
            plistlib.load(file)
        state.change(loaded=True, pid=os.getpid(), runs=1)
    elif verb == "bootout":
        state.change(lingers=2)
    elif verb == "kill":
        state.change(pid=0)
    elif verb == "kickstart":
        state.change(pid=os.getpid(), runs=now["runs"] + 1)
    elif verb != "enable":
        sys.stderr.write(f"Unrecognized subcommand: {verb}\n")
        return 64
    return 0


def printed(target: str, now: Values) -> str:
    """The form of `launchctl print`."""
    lines = ["active count = 1", "type = LaunchAgent", f"state = {'running' if now['pid'] else 'not running'}", ""]
    lines += ["arguments = {", "\tpid = 1", "}", f"runs = {now['runs']}"]
    lines += [f"pid = {now['pid']}"] if now["pid"] else []
    lines += ["last exit code = (never exited)" if now["runs"] < 2 else "last exit code = 1"]
    return target + " = {\n" + "".join(f"\t{line}\n" for line in lines) + "}\n"


def systemctl(state: State, arguments: list[str]) -> int:
    if arguments[0] != "--user":
        sys.stderr.write("only --user\n")
        return 1
    verb, now = arguments[1], state.read()
    if verb == "show":
        active = "active" if now["pid"] else "failed" if now.get("failed") else "inactive"
        code, status = (2, 9) if now.get("failed") else (0, 0)
        figures = {"ActiveState": active, "MainPID": now["pid"], "NRestarts": now["runs"]}
        figures |= {"ExecMainCode": code, "ExecMainStatus": status}
        wanted = arguments[3].removeprefix("--property=").split(",")
        sys.stdout.write("".join(f"{name}={figures[name]}\n" for name in wanted))
    elif verb in ("start", "restart"):
        if now.get("failed"):
            sys.stderr.write("Start request repeated too quickly.\n")
            return 1
        state.change(pid=os.getpid())
    elif verb == "stop" or arguments[1:3] == ["disable", "--now"]:
        state.change(pid=0)
    elif verb == "reset-failed":
        state.change(failed=False)
    elif verb not in ("enable", "daemon-reload"):
        sys.stderr.write(f"Unknown command verb {verb}.\n")
        return 1
    return 0


def main() -> int:
    state = State(os.environ["FAKE_STATE"])
    arguments = sys.argv[1:]
    state.note(arguments)
    verb = next((word for word in arguments if not word.startswith("-")), "")
    answers = state.read()["answers"]
    if answers.get(verb):
        status, said = answers[verb].pop(0)
        state.change(answers=answers)
        sys.stderr.write(said)
        return int(status)
    return {"launchctl": launchctl, "systemctl": systemctl}[os.path.basename(sys.argv[0])](state, arguments)


if __name__ == "__main__":
    sys.exit(main())
