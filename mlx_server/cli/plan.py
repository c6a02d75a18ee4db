"""`mlx-serve plan`: what a model takes of this machine's memory, and how much of it fits."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mlx_server.cli.options import Json
from mlx_server.cli.output import print_table
from mlx_server.cli.serve import gigabytes
from mlx_server.core.errors import MlxServeError, ModelLoadError
from mlx_server.core.setting_types import parse_bytes
from mlx_server.core.settings import Settings
from mlx_server.core.step import BLOCK_SIZE
from mlx_server.services.sizing.estimate import (
    TAIL_TOKENS,
    Device,
    Estimate,
    estimate,
    largest_concurrency,
    largest_context,
)
from mlx_server.services.sizing.shape import ModelShape, read_shape

if TYPE_CHECKING:
    from mlx_server.daemon.model_headers import Headers

PROGRAM_BYTES = 256 << 20
"""Of daemon and engine process beside what MLX holds (measured on Linux with the embedded model: 210 MB)."""

_MAX_CONTEXT = 1 << 24
_USUAL_CONTEXT = 8192
_MAX_CONCURRENCY = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, what fits of it, and the pool that these settings would make.

    fitting_context: of so many requests as were asked for; fitting_concurrency: of requests as long as asked for.
    pool_blocks: None where the pool would be refused.
    """

    model: str
    shape: ModelShape
    device: Device
    asked: Estimate
    fitting_context: int
    fitting_concurrency: int
    pool_blocks: int | None

    @property
    def fits(self) -> bool:
        return self.asked.total <= self.device.limit_bytes


def plan(
    settings: Settings,
    context: Annotated[
        str | None,
        typer.Option(
            help="Tokens of a request, prompt and answer, e.g. 32k (32,768). By default 8k, or all the model knows.",
            metavar="TOKENS",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=_MAX_CONCURRENCY, help="Requests of that length at the same time.")
    ] = 4,
    as_json: Json = False,
) -> None:
    """Tell what a model takes of this machine's memory, before it is downloaded or loaded.

    The figures are upper bounds. The exit code is 1 where not even one request of that length fits.
    """
    from mlx_server.daemon.model_headers import read_headers

    tokens = None if context is None else parse_tokens(context)
    found = make_plan(settings, read_headers(settings.model), tokens, concurrency)
    if as_json:
        typer.echo(json.dumps(plan_json(found), indent=2))
    else:
        print_table(plan_table(found))
        typer.echo("\n".join(["", verdict(found), *advice(found, settings)]))
    if found.fitting_concurrency == 0:
        raise typer.Exit(1)


def parse_tokens(text: str) -> int:
    """`32k` -> 32768. Raises `typer.BadParameter`."""
    try:
        tokens = parse_bytes(text.strip().rstrip("bB"))
    except ValueError:
        tokens = 0
    if not 1 <= tokens <= _MAX_CONTEXT:
        raise typer.BadParameter(f"--context {text!r} must be a number of tokens, 1 to {_MAX_CONTEXT:,}, such as 32k")
    return int(tokens)


def make_plan(settings: Settings, headers: Headers, context: int | None, concurrency: int) -> Plan:
    """context: tokens of a request; None for a usual length.

    Raises `SizingUnknownError` for a model whose files do not tell, `MlxServeError` for too long a context.
    """
    from mlx_server.runner.device import compute_device
    from mlx_server.runner.memory import pool_blocks

    shape = read_shape(*headers, as_float32=compute_device().is_cpu)
    device = this_device()
    most = min(shape.context, settings.max_model_len or shape.context)
    if context is None:
        context = min(_USUAL_CONTEXT, most)
    if context > most:
        whose = f"{settings.model} knows" if most == shape.context else "max_model_len allows"
        raise MlxServeError(f"{whose} {most:,} tokens of context, fewer than {context:,}")
    chunk = settings.max_num_batched_tokens
    try:
        blocks = pool_blocks(settings, shape.kv_bytes_per_token, shape.weight_bytes, shape.context)
    except ModelLoadError:
        blocks = None
    return Plan(
        model=settings.model,
        shape=shape,
        device=device,
        asked=estimate(shape, device, context, concurrency, chunk),
        fitting_context=largest_context(shape, device, concurrency, chunk),
        fitting_concurrency=largest_concurrency(shape, device, context, _MAX_CONCURRENCY, chunk),
        pool_blocks=blocks,
    )


def this_device() -> Device:
    """What MLX computes on here. Loads MLX, which tells what the device may take."""
    from mlx_server.runner.device import FUSED_HEAD_DIMS, compute_device
    from mlx_server.runner.memory import buffer_cache_limit, kept_limit
    from mlx_server.services.memory.source import system_source

    device = compute_device()
    limit, name = device.memory_bytes, "what the device recommends to use at most"
    if limit is None:
        reading = system_source().read({})
        limit, name = reading.available_bytes, "memory available now"
        if reading.cgroup_limit_bytes is not None and reading.cgroup_used_bytes is not None:
            left = max(reading.cgroup_limit_bytes - reading.cgroup_used_bytes, 0)
            if left < limit:
                limit, name = left, "left of the control group's memory"
    return Device(
        name=device.name,
        limit_bytes=limit,
        limit_name=name,
        program_bytes=PROGRAM_BYTES if device.is_cpu else 0,
        fused_head_dims=frozenset() if device.is_cpu else FUSED_HEAD_DIMS,
        kept_limit=kept_limit,
        buffer_cache_limit=buffer_cache_limit,
    )


def plan_table(found: Plan) -> Table:
    """One line for each part: bytes, and where they come from."""
    asked, shape, device = found.asked, found.shape, found.device
    table = Table(title=f"{found.model} on {device.name}", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    requests = f"{asked.concurrency} request{'s' if asked.concurrency > 1 else ''}"
    rows = [
        ("weights", shape.weight_bytes, _held(shape)),
        ("KV of a token", asked.kv_per_token, f"{shape.layers} layers, {_window_note(shape)}"),
        ("KV of a request", asked.kv_per_request, f"{asked.context:,} tokens in whole blocks of {BLOCK_SIZE}"),
        ("KV pool", asked.pool, f"{asked.blocks:,} blocks, for {requests}"),
        ("KV outside the pool", asked.tails, f"the last {TAIL_TOKENS} tokens of each, and a prefill's newest"),
        ("kept gathers", asked.kept, "at most an eighth of the pool"),
        ("prefill: scores", asked.scores, _scores_note(found)),
        ("prefill: the rest", asked.activations, f"activations of {asked.chunk:,} tokens, a layer's K/V (estimated)"),
        ("MLX's buffer cache", asked.buffer_cache, "freed buffers, at most"),
        ("programs", asked.program, "daemon and engine process, without what MLX holds"),
        ("all together", asked.total, "at most"),
        ("this machine", device.limit_bytes, device.limit_name),
        ("headroom", device.limit_bytes - asked.total, ""),
    ]
    for name, size, note in rows:
        sign = "-" if size < 0 else ""
        style = "bold" if name in ("all together", "headroom") else None
        table.add_row(Text(name), Text(sign + size_text(abs(size))), Text(note, style="dim"), style=style)
    return table


def verdict(found: Plan) -> str:
    """One sentence: fits, fits with fewer, or does not fit; and the longest context that does."""
    asked, longest = found.asked, found.fitting_context
    what = f"{asked.concurrency} at a time with {asked.context:,} tokens each"
    context = f"the longest context that fits {asked.concurrency} at a time is {longest:,} tokens"
    if found.fits:
        return f"It fits: {what}; {context}."
    if found.fitting_concurrency:
        tail = f"; {context}" if longest else ""
        return f"It does not fit with {what}: it fits with {found.fitting_concurrency} at a time{tail}."
    shorter = f"; {context}" if longest else ", nor does any shorter context"
    return f"It does not fit: not even one request of {asked.context:,} tokens does{shorter}."


def advice(found: Plan, settings: Settings) -> list[str]:
    """What the settings would make of it, and the command that gives the pool its size."""
    lines = []
    if found.shape.is_multimodal:
        lines.append("The figures are those of the language part alone, which is what is served.")
    if found.pool_blocks is None:
        lines.append("With these settings the pool would be refused as too small.")
    else:
        tokens = found.pool_blocks * BLOCK_SIZE
        lines.append(
            f"With these settings the pool may grow to {found.pool_blocks:,} blocks: "
            f"{size_text(tokens * found.asked.kv_per_token)}, {tokens:,} tokens"
            + ("; what requests leave over caches prefixes." if found.pool_blocks > found.asked.blocks else ".")
        )
    fewer = min(found.asked.concurrency, found.fitting_concurrency)
    if fewer and (found.pool_blocks or 0) < fewer * found.asked.blocks // found.asked.concurrency:
        megabytes = -(-fewer * found.asked.kv_per_request >> 20)
        command = ["mlx-serve", "serve", "--model", settings.model, "--kv-memory", f"{megabytes}MB"]
        lines.append(f"For {fewer} at a time: {shlex.join([*command, '--max-num-seqs', str(fewer)])}")
    if found.asked.scores > found.asked.pool:
        lines.append("A smaller --max-num-batched-tokens makes the scores smaller in proportion.")
    return lines


def plan_json(found: Plan) -> dict[str, Any]:
    """The same for programs; sizes are bytes."""
    shape = dataclasses.asdict(found.shape)
    return {
        "model": found.model,
        "shape": shape | {"kv_bytes_per_token": found.shape.kv_bytes_per_token},
        "device": {
            "name": found.device.name,
            "limit_bytes": found.device.limit_bytes,
            "limit": found.device.limit_name,
        },
        "bytes": dataclasses.asdict(found.asked) | {"total": found.asked.total},
        "fits": found.fits,
        "fitting_context": found.fitting_context,
        "fitting_concurrency": found.fitting_concurrency,
        "pool_blocks": found.pool_blocks,
        "verdict": verdict(found),
    }


def size_text(size: int) -> str:
    """Bytes for a person: KB below a megabyte."""
    return gigabytes(size) if size >= 1 << 20 or size == 0 else f"{size / 1024:.1f} KB"


def _held(shape: ModelShape) -> str:
    return "as float32, since MLX's CPU backend is slow with less" if shape.element_bytes == 4 else "as they are stored"


def _window_note(shape: ModelShape) -> str:
    note = f"{shape.kv_elements:,} numbers of {shape.element_bytes} bytes"
    if shape.window is None or not shape.sliding_layers:
        return note
    return f"{note}; {shape.sliding_layers} see {shape.window:,} tokens only, yet the pool keeps all"


def _scores_note(found: Plan) -> str:
    asked, shape = found.asked, found.shape
    if not asked.scores:
        return f"none: MLX's attention is fused for heads of {shape.head_dim}"
    why = "on the CPU" if not found.device.fused_head_dims else f"for heads of {shape.head_dim}"
    size = f"{shape.heads} heads x {asked.chunk:,} x {asked.context:,} x {shape.element_bytes} bytes"
    return f"not fused {why}: {size}, twice"
