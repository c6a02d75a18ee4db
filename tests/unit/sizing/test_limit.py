"""A refusal says which of three limits it is."""

import pytest

from mlx_server.core.errors import ContextLengthError
from mlx_server.core.messages import EngineInfo
from mlx_server.services.sizing.limit import limit_reason


def info(max_model_len: int, num_blocks: int = 100) -> EngineInfo:
    return EngineInfo(
        model_id="x",
        model_path="/x",
        model_type="x",
        vocab_size=256,
        max_model_len=max_model_len,
        eos_token_ids=(),
        num_blocks=num_blocks,
        initial_blocks=num_blocks,
        block_size=32,
        kv_bytes_per_token=6144,
        weight_bytes=0,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        load_s=0.0,
    )


@pytest.mark.parametrize(
    ("max_model_len", "setting", "words"),
    [
        (3200, None, "the KV pool: 100 blocks of 32 tokens, 18.8 MB at 6.0 KB a token; --kv-memory"),
        (3200, 5000, "the KV pool"),
        (1000, 1000, "--max-model-len 1000"),
        (1000, None, "the context that the model knows"),
        (1000, 2000, "the context that the model knows"),
    ],
)
def test_the_reason(max_model_len: int, setting: int | None, words: str) -> None:
    reason = limit_reason(info(max_model_len), setting)
    assert words in reason
    text = str(ContextLengthError(max_model_len, 5000, reason=reason))
    assert text.startswith(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt has 5000"
    )
    assert text.endswith(reason)


def test_without_a_reason_the_text_ends_as_before() -> None:
    assert str(ContextLengthError(10, 20)).endswith("Please reduce the length of the prompt.")
