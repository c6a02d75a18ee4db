"""Settings, parsed once at the edge into a frozen object. Nothing further in reads the environment.

Precedence: command-line flags, then `MLX_SERVE_*` environment variables, then the TOML file, then the defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mlx_server.core.config_file import chosen_config_path, read_config_file
from mlx_server.core.errors import SettingsError
from mlx_server.core.setting_docs import legal_text
from mlx_server.core.setting_types import Bytes, HostNames, Origins

DEMO_MODEL = "demo"
"""The name of the embedded demonstration model."""


MIN_KV_MEMORY = 1 << 20
"""Bytes."""


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
        None,
        ge=MIN_KV_MEMORY,
        description="Memory of the KV pool, e.g. 4GB. By default a share of what the machine has.",
    )
    memory_warn_percent: float = Field(
        85.0,
        ge=50,
        le=100,
        description="Share of the machine's memory in use from which caches are given back; it ends 5 points below.",
    )
    memory_critical_percent: float = Field(
        95.0,
        ge=50,
        le=100,
        description="Share of the machine's memory in use from which nothing new is begun and the KV pool shrinks; it "
        "ends 5 points below.",
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
    log_format: Literal["text", "json"] = Field(
        "text", description="Form of the log: lines for people, or one JSON object a line for programs."
    )
    log_prompts: bool = Field(
        False,
        description="Log what clients ask, cut off after 2,000 characters: whoever reads the log then reads the chats.",
    )
    log_file: Path | None = Field(
        None,
        description="File for everything that is written to stdout and stderr, crashes included; it is rotated at 10 "
        "MB, and three older ones are kept.",
    )

    @model_validator(mode="after")
    def _warns_before_it_is_critical(self) -> Settings:
        if self.memory_warn_percent > self.memory_critical_percent:
            raise ValueError(
                f"memory_warn_percent = {self.memory_warn_percent:g} must be at most memory_critical_percent "
                f"= {self.memory_critical_percent:g}"
            )
        return self

    @model_validator(mode="after")
    def _budget_holds_every_row(self) -> Settings:
        if self.max_num_batched_tokens < self.max_num_seqs + 32:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} must be at least max_num_seqs + 32 "
                f"= {self.max_num_seqs + 32}: a decode of every row and one block of prefill"
            )
        return self


Origin = Literal["flag", "environment", "file", "default"]
"""Where the value of a setting comes from."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """file: the TOML file that was read; None for none. origins: of every setting."""

    settings: Settings
    file: Path | None
    origins: Mapping[str, Origin]


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Flags that are None count as not given. Raises `SettingsError` naming key, value and legal range."""
    return load_settings_with_origins(config, **flags).settings


def load_settings_with_origins(config: Path | None = None, **flags: Any) -> LoadedSettings:
    """`load_settings`, and where each value comes from. config: the TOML file, by default `chosen_config_path`."""
    path = chosen_config_path(config)
    sources: dict[Origin, dict[str, Any]] = {
        "file": {} if path is None else read_config_file(path, Settings),
        "environment": dict(EnvSettingsSource(Settings)()),
        "flag": {key: value for key, value in flags.items() if value is not None},
    }
    origins: dict[str, Origin] = dict.fromkeys(Settings.model_fields, "default")
    values: dict[str, Any] = {}
    for origin, given in sources.items():
        values |= given
        origins |= dict.fromkeys(given, origin)
    return LoadedSettings(_checked(Settings, values, origins, path), path, origins)


def check_config_file(path: Path) -> dict[str, Any]:
    """What the file sets, each value legal by itself and together, whatever the environment says.

    Raises `SettingsError` as `load_settings` does.
    """

    class FileAlone(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings,)

    values = read_config_file(path, Settings)
    _checked(FileAlone, values, dict.fromkeys(values, "file"), path)
    return values


def _checked(
    settings: type[Settings], values: dict[str, Any], origins: Mapping[str, Origin], path: Path | None
) -> Settings:
    try:
        return settings(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(e, origins, path) for e in error.errors())) from error


def _explain(error: Any, origins: Mapping[str, Origin], path: Path | None) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    key = str(error["loc"][0])
    where = {"file": f" in '{path}'", "environment": f" (MLX_SERVE_{key.upper()})"}.get(origins.get(key, "flag"), "")
    shown = f"{key} = {error['input']!r}{where}"
    field = Settings.model_fields.get(key)
    if field is None:
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{shown}: there is no such setting{hint} ('mlx-serve config show' lists them)"
    return f"{shown}: {error['msg']}; legal: {legal_text(field).replace('`', '')} ({field.description})"
