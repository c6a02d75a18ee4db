"""Command-line flags derived from `Settings`: one field, one flag, one row of documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mlx_server.core.config_file import CONFIG_VARIABLE
from mlx_server.core.setting_docs import default_text, legal_text
from mlx_server.core.settings import Settings, load_settings

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar=CONFIG_VARIABLE,
        help="TOML file with settings. By default config.toml in the user's folder for settings, where there is one.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True, slots=True)
class SettingDoc:
    """A setting as a person sees it. `default` and `legal` are display texts."""

    name: str
    flag: str
    environment: str
    default: str
    legal: str
    description: str
    is_switch: bool


def describe_settings() -> Iterator[SettingDoc]:
    """All settings, in the order of their declaration."""
    prefix = Settings.model_config.get("env_prefix", "")
    for name, field in Settings.model_fields.items():
        is_switch = field.annotation is bool
        dashed = name.replace("_", "-")
        yield SettingDoc(
            name=name,
            flag=f"--{dashed}/--no-{dashed}" if is_switch else f"--{dashed}",
            environment=prefix + name.upper(),
            default=default_text(field),
            legal=legal_text(field),
            description=field.description or "",
            is_switch=is_switch,
        )


def configuration_table() -> str:
    """The settings as the Markdown table of `docs/configuration.md` (`test_settings_table_is_current`)."""
    rows = ["| flag | environment | default | legal values | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{doc.flag}` | `{doc.environment}` | {_code(doc.default)} | {doc.legal} | {doc.description} |"
        for doc in describe_settings()
    ]
    return "\n".join(rows) + "\n"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the parameter `settings: Settings` of `command` into one flag for each field.

    Flags reach `load_settings` as text, so that pydantic alone decides what is legal; a flag that is not
    given leaves the field to the environment, the TOML file (`--config`) and the default. Raises `SettingsError`.
    """
    docs = list(describe_settings())

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {doc.name: given.pop(doc.name) for doc in docs}
        command(settings=load_settings(given.pop("config"), **flags), **given)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)
    parameters = [*own, config, *(_parameter(doc) for doc in docs)]
    del run.__wrapped__  # else typer looks through to `command`
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(doc: SettingDoc) -> inspect.Parameter:
    legal = "" if doc.is_switch else f", legal {doc.legal}"
    option = typer.Option(
        doc.flag,
        help=f"{doc.description} Default {doc.default}{legal}.".replace("`", ""),
        show_default=False,
        rich_help_panel="Settings",
        metavar=None if doc.is_switch else "VALUE",
    )
    annotation = Annotated[bool | None, option] if doc.is_switch else Annotated[str | None, option]
    return inspect.Parameter(doc.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _code(default: str) -> str:
    return default if default in ("unset", "none", "on", "off") else f"`{default}`"
