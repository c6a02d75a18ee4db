"""Types of settings that are written as text: sizes, lists of names."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(value: Any) -> Any:
    """`"4GB"`, `"512M"`, `1048576` -> bytes (powers of 1024). Other types pass through to pydantic."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", value, re.IGNORECASE)
    if match is None:
        raise ValueError("must be a size such as 512MB, 4GB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def split_names(value: Any) -> Any:
    """`"a, b"` -> ("a", "b"). Other types pass through to pydantic."""
    if not isinstance(value, str):
        return value
    return tuple(name for part in value.split(",") if (name := part.strip()))


def check_host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Lower case; raises `ValueError` for what is no name or address."""
    for name in names:
        if re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", name) is None or name.endswith("."):
            raise ValueError(f"{name!r} must be a host name or an address, without scheme, port or '*'")
    return tuple(name.lower() for name in names)


def check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Lower case, as browsers send them; raises `ValueError` for what is no origin."""
    for origin in origins:
        if origin == "*":
            raise ValueError("'*' would let every web page that is open use the daemon; name the origins")
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@*]+", origin) is None:
            raise ValueError(f"{origin!r} must be like http://localhost:3000, with nothing behind the port")
    return tuple(origin.lower() for origin in origins)


Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_names)]
HostNames = Annotated[Names, AfterValidator(check_host_names)]
Origins = Annotated[Names, AfterValidator(check_origins)]
