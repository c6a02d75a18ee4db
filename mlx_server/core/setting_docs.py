"""A setting's default and legal values as display text, read from the field itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from mlx_server.core.setting_types import parse_bytes, split_names


def default_text(field: FieldInfo) -> str:
    """As a person reads it, e.g. 8642, 32MB, on, unset, none."""
    return "unset" if field.default is None else value_text(field, field.default)


def value_text(field: FieldInfo, value: Any) -> str:
    """A value of the field as a person writes it."""
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return size_text(value) if is_size(field) and isinstance(value, int) else str(value)


def legal_text(field: FieldInfo) -> str:
    """The constraints of a field in words, e.g. `1 to 1,024`; "" when nothing says what is legal."""
    kinds = {field.annotation, *get_args(field.annotation)}
    if bool in kinds:
        return "on or off"
    if get_origin(field.annotation) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(field.annotation))
    for item in field.metadata:
        if pattern := getattr(item, "pattern", None):
            return " or ".join(f"`{word}`" for word in pattern.strip("^$()").split("|"))
    if bounds := _bounds(field):
        return bounds
    if _is_made_by(field, split_names):
        return "names"
    return next((word for kind, word in ((Path, "path"), (str, "text")) if kind in kinds), "")


def _bounds(field: FieldInfo) -> str:
    show = size_text if is_size(field) else number_text
    bounds = {
        name: show(value)
        for item in field.metadata
        for name in ("ge", "le", "lt")
        if (value := getattr(item, name, None)) is not None
    }
    if not bounds:
        return ""
    if "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']}"
    return f"{bounds['ge']} to below {bounds['lt']}" if "lt" in bounds else f"at least {bounds['ge']}"


def is_size(field: FieldInfo) -> bool:
    """Whether the field is a `Bytes`, alone or inside `Bytes | None`."""
    return _is_made_by(field, parse_bytes)


def _is_made_by(field: FieldInfo, parse: Any) -> bool:
    metadata = [*field.metadata]
    for part in get_args(field.annotation):
        metadata += getattr(part, "__metadata__", ())
    return any(isinstance(item, BeforeValidator) and item.func is parse for item in metadata)


def number_text(value: float) -> str:
    """`1,024`; large powers of two as `2^63`."""
    if isinstance(value, int) and value > 1 << 32 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}"


def size_text(value: int) -> str:
    """Bytes in the largest unit that divides them: `32MB`."""
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if value % scale == 0 and value:
            return f"{value // scale}{unit}"
    return str(value)
