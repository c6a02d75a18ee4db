"""Where requests are measured: between a choice and whoever writes it out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from mlx_server.chat.generation import TextDelta
from mlx_server.core.errors import DeadlineError, EngineDeadError, GenerationError, MlxServeError
from mlx_server.core.messages import FinishReason
from mlx_server.telemetry.metrics import ChoiceMetrics


async def observed(deltas: AsyncGenerator[TextDelta, None], metrics: ChoiceMetrics) -> AsyncGenerator[TextDelta, None]:
    """The same deltas. A choice that is not accepted is not counted; one that is cut short counts as aborted."""
    ending: FinishReason | None = FinishReason.ABORT
    try:
        async with aclosing(deltas):
            async for delta in deltas:
                metrics.note(delta.completion_tokens, delta.queue_s)
                if delta.finish_reason is not None:
                    ending = None
                    metrics.end(delta.finish_reason)
                yield delta
    except DeadlineError:
        raise
    except (GenerationError, EngineDeadError):
        ending = FinishReason.ERROR
        raise
    except MlxServeError:
        ending = None
        raise
    finally:
        if ending is not None:
            metrics.end(ending)
