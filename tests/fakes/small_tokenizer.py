"""A tokenizer trained on a few sentences: byte-level like most current models, or SentencePiece-like."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mlx_server.chat.tokenizer import ChatTokenizer, load_tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "How are you today? I am fine, thank you.",
    "Paris is the capital of France. 1 2 3 4 5 6 7 8 9 10",
    "user assistant system\nhello hello hello",
    "naïve café résumé 日本語 😀",
] * 4
TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.content == 'refuse me' %}{{ raise_exception('Conversation roles must alternate') }}{% endif -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"
    "{%- if enable_thinking is defined and enable_thinking %}<think>{% endif -%}"
)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("«plain added»", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 and Gemma have it: spaces as U+2581, unknown characters as byte tokens."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581"), "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", *SPECIALS], show_progress=False, limit_alphabet=60
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    whole = json.loads(tokenizer.to_str())
    vocab = whole["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    return Tokenizer.from_str(json.dumps(whole))


def save_folder(tokenizer: Tokenizer, folder: Path, template: str | None = TEMPLATE) -> Path:
    """A model folder as far as text goes."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def load(tokenizer: Tokenizer, template: str | None = TEMPLATE) -> ChatTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(save_folder(tokenizer, Path(folder), template))


@functools.cache
def shared() -> ChatTokenizer:
    """The byte-level one, loaded once per process."""
    return load(byte_level())


@functools.cache
def shared_fallback() -> ChatTokenizer:
    return load(byte_fallback())


def model_folder(folder: Path) -> Path:
    """What `resolve_model` takes for a model; only its text side can be loaded."""
    save_folder(byte_level(), folder)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder
