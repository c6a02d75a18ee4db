"""Command-line flags derived from `Settings`: one field, one flag, one row of documentation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from mlx_server.core.settings import Settings, load_settings, parse_bytes


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
            default=_default(field),
            legal=_legal(field),
            description=field.description or "",
            is_switch=is_switch,
        )


def configuration_table() -> str:
    """The settings as the Markdown table of `docs/configuration.md` (`test_settings_table_is_current`)."""
    rows = ["| flag | environment | default | legal values | meaning |", "|---|---|---|---|---|"]
    rows += [
        f"| `{doc.flag}` | `{doc.environment}` | {doc.default} | {doc.legal} | {doc.description} |"
        for doc in describe_settings()
    ]
    return "\n".join(rows) + "\n"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the parameter `settings: Settings` of `command` into one flag for each field.

    Flags reach `load_settings` as text, so that pydantic alone decides what is legal; a flag that is not
    given leaves the field to the environment and the default. Raises `SettingsError`.
    """
    docs = list(describe_settings())

    @functools.wraps(command)
    def run(**given: Any) -> None:
        flags = {doc.name: given.pop(doc.name) for doc in docs}
        command(settings=load_settings(**flags), **given)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]
    parameters = own + [_parameter(doc) for doc in docs]
    del run.__wrapped__  # else typer looks through to `command`
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(doc: SettingDoc) -> inspect.Parameter:
    legal = "" if doc.is_switch or doc.legal == "text" else f", legal {doc.legal}"
    option = typer.Option(
        doc.flag,
        help=f"{doc.description} Default {doc.default}{legal}.".replace("`", ""),
        show_default=False,
        rich_help_panel="Settings",
        metavar=None if doc.is_switch else "VALUE",
    )
    annotation = Annotated[bool | None, option] if doc.is_switch else Annotated[str | None, option]
    return inspect.Parameter(doc.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "unset"
    if field.default == ():
        return "none"
    if field.annotation is bool:
        return "on" if field.default else "off"
    return f"`{_size(field.default) if _is_size(field) else field.default}`"


def _legal(field: FieldInfo) -> str:
    """The constraints of a field in words, e.g. `1 to 1024`."""
    if field.annotation is bool:
        return "on or off"
    if get_origin(field.annotation) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(field.annotation))
    for item in field.metadata:
        if pattern := getattr(item, "pattern", None):
            return " or ".join(f"`{word}`" for word in pattern.strip("^$()").split("|"))
    show = _size if _is_size(field) else _number
    bounds = {
        name: show(value)
        for item in field.metadata
        for name in ("ge", "le", "lt")
        if (value := getattr(item, name, None)) is not None
    }
    if not bounds:
        return "text"
    if "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    return f"{bounds['ge']} to below {bounds['lt']}" if "lt" in bounds else f"at least {bounds['ge']}"


def _is_size(field: FieldInfo) -> bool:
    """Whether the field is a `Bytes`, alone or inside `Bytes | None`."""
    metadata = [*field.metadata]
    for part in get_args(field.annotation):
        metadata += getattr(part, "__metadata__", ())
    return any(isinstance(item, BeforeValidator) and item.func is parse_bytes for item in metadata)


def _number(value: float) -> str:
    if isinstance(value, int) and value > 1 << 32 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}"


def _size(value: int) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if value % scale == 0 and value:
            return f"{value // scale}{unit}"
    return str(value)
