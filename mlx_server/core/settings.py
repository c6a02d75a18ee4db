"""Settings, parsed once at the edge into a frozen object. Nothing further in reads the environment.

Precedence: command-line flags, then `MLX_SERVE_*` environment variables, then the defaults.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mlx_server.core.errors import SettingsError

DEMO_MODEL = "demo"
"""The name of the embedded demonstration model."""

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


class Settings(BaseSettings):
    """Everything an administrator may set. Each field's description is its documentation."""

    model_config = SettingsConfigDict(env_prefix="MLX_SERVE_", frozen=True, extra="forbid")

    model: str = Field(
        DEMO_MODEL,
        min_length=1,
        description="Model to serve: 'demo', a local folder, or a Hugging Face repository id.",
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="Name under which clients see the model; by default `model`."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8642, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    engine: Literal["process", "inprocess"] = Field(
        "process",
        description="Where the model runs: in a supervised process of its own, or in the daemon's (for debugging: a "
        "crash of the model is then one of the daemon).",
    )
    max_model_len: int | None = Field(
        None, ge=64, description="Most tokens (prompt + answer) of one request; by default the model's context."
    )
    max_num_seqs: int = Field(64, ge=1, le=1024, description="Most requests that run at the same time.")
    max_num_batched_tokens: int = Field(
        2048, ge=64, le=65536, description="Most tokens computed in one step, decodes and prefill chunks together."
    )
    max_queue: int = Field(
        256, ge=1, le=100_000, description="Most requests of one priority that wait; one more gets a 429."
    )
    max_queue_per_key: int = Field(
        128, ge=1, le=100_000, description="Most requests of one API key that wait; one more gets a 429."
    )
    request_timeout_s: float = Field(
        3600.0,
        ge=1,
        le=86_400,
        description="Longest a request may take, waiting included; a client may ask for less with the header "
        "x-request-timeout.",
    )
    slow_client_s: float = Field(
        30.0,
        ge=1,
        le=3600,
        description="A client that reads nothing of its stream for so long is dropped; its row is given to others long "
        "before.",
    )
    client_timeout_s: float = Field(
        20.0,
        ge=1,
        le=600,
        description="Longest wait for the head of a request, or for the next part of its body.",
    )
    max_connections: int = Field(512, ge=1, le=65_535, description="Most open connections; one more is closed at once.")
    step_timeout_s: float = Field(
        120.0,
        ge=1,
        le=3600,
        description="A step that takes longer hangs: the engine's process is replaced and its requests go on in the "
        "next one.",
    )
    drain_s: float = Field(
        15.0,
        ge=0,
        le=3600,
        description="After SIGTERM, how long running answers may go on; then they end with an error.",
    )
    kv_blocks: int | None = Field(None, ge=4, description="Number of 32-token KV blocks. Overrides `kv_memory`.")
    kv_memory: Bytes | None = Field(
        None, ge=1 << 20, description="Memory of the KV pool, e.g. 4GB. By default a share of what the machine has."
    )
    step_target_ms: float = Field(
        120.0,
        ge=5,
        le=10_000,
        description="A prefill chunk is sized so that a step beside running answers is predicted to take this long.",
    )
    default_max_tokens: int = Field(
        4096, ge=1, description="Answer length when a request names none; the context may shorten it."
    )
    seed: int | None = Field(
        None, ge=0, lt=1 << 63, description="Seed of requests that bring none; by default a random one each."
    )
    prefix_cache: bool = Field(True, description="Reuse the KV blocks of prompts and answers seen before.")
    max_body_bytes: Bytes = Field(
        32 << 20, ge=1024, description="Largest request body accepted; a larger one gets a 413."
    )
    allowed_hosts: HostNames = Field(
        (),
        description="More names, separated by commas, that the Host header of a request may have. Loopback names and "
        "this machine's own are always allowed.",
    )
    cors_origins: Origins = Field(
        (),
        description="Origins, separated by commas, whose web pages may use the daemon, e.g. http://localhost:3000. By "
        "default none.",
    )
    keys_file: Path | None = Field(
        None, description="File with the API keys' hashes; by default keys.json in the user's folder for settings."
    )
    tracing: bool = Field(
        False,
        description="Trace requests with logfire (OpenTelemetry); LOGFIRE_TOKEN or OTEL_EXPORTER_OTLP_ENDPOINT says "
        "where to. Figures only, never prompt text.",
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="Least severe log line written.")

    @model_validator(mode="after")
    def _budget_holds_every_row(self) -> Settings:
        if self.max_num_batched_tokens < self.max_num_seqs + 32:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} must be at least max_num_seqs + 32 "
                f"= {self.max_num_seqs + 32}: a decode of every row and one block of prefill"
            )
        return self


def load_settings(**flags: Any) -> Settings:
    """Flags that are None count as not given. Raises `SettingsError` naming key, value and legal range."""
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(e) for e in error.errors())) from error


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if not key:
        return str(error["msg"]).removeprefix("Value error, ")
    field = Settings.model_fields.get(key.lower())
    about = f" ({field.description})" if field is not None and field.description else ""
    return f"{key} = {error['input']!r}: {error['msg']}{about}"
