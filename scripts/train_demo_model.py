"""Train the embedded demo model from scratch on generated text.

Needs torch, tokenizers, numpy, jinja2 and safetensors; runs on the CPU. Run from anywhere:

    python scripts/train_demo_model.py --work DIR --out mlx_server/demo_model --tokens 40000000

A run that was stopped (SIGTERM saves first) goes on from DIR/checkpoint.pt. The
same seed and token budget give the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

# Waiting threads must not spin: where another process holds a core, spinning halves the speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from demo_corpus import chat, render
from demo_corpus import tokenizer as bpe
from demo_corpus.batches import Batch, Writer
from demo_corpus.muon import Muon
from demo_corpus.network import Network, Shape
from safetensors.torch import save_file
from tokenizers import Tokenizer

WARMUP_STEPS = 60
SAVE_EVERY_S = 300.0


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint, the tokenizer and the log")
    parser.add_argument("--out", type=Path, required=True, help="model folder; must already hold chat_template.jinja")
    parser.add_argument("--tokens", type=float, default=40e6, help="token budget of the whole run")
    parser.add_argument("--batch", type=int, default=8192, help="tokens of a batch")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05, help="of the weight matrices")
    parser.add_argument(
        "--decay-from", type=float, default=0.5, help="share of the budget after which the rate falls to zero"
    )
    parser.add_argument(
        "--long-from", type=float, default=0.84, help="share of the budget after which many sequences are 2k to 4k"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="time budget of the whole run")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler")
    parser.add_argument("--check", action="store_true", help="only compare the renderer with the chat template")
    parser.add_argument(
        "--tokenizer-only", action="store_true", help="write config and tokenizer to --out, no training"
    )
    return parser.parse_args()


def rate(progress: float, step: int, decay_from: float) -> float:
    """Warmup, plateau, then linear decay to 2 %."""
    falling = min(1.0, (1.0 - progress) / (1.0 - decay_from))
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, falling)


def write_config(out: Path, shape: Shape) -> None:
    """config.json and generation_config.json."""
    (out / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0, "max_new_tokens": 512}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_tokenizer(work: Path, out: Path, seed: int, shape: Shape) -> Tokenizer:
    """The tokenizer of this run, trained on the first call."""
    path = work / "tokenizer.json"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        bpe.save(bpe.train(seed, shape.vocab_size), work, shape.max_position_embeddings)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(work / name, out / name)
    write_config(out, shape)
    return Tokenizer.from_file(str(path))


def check_rendering(out: Path, seed: int) -> None:
    """Raise ValueError if chat_template.jinja renders some chat unlike the renderer used for training."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((out / "chat_template.jinja").read_text())
    rng = random.Random(seed)
    for _ in range(300):
        made, state, who, box = chat.start_chat(rng, rng.random() < 0.5)
        ours = render.head(who.system, made.tools)
        source = chat.exchanges(rng, state, who, box, 0.3)
        for _ in range(4):
            exchange = next(source)
            made.messages += exchange
            ours += "".join(text for text, _ in render.segments(exchange))
        theirs = template.render(messages=made.messages, tools=made.tools or None, add_generation_prompt=False)
        if ours != theirs:
            raise ValueError(f"chat template and renderer differ:\n{ours}\n--- template:\n{theirs}")
    print("template and renderer agree on 300 chats")


def export(network: Network, out: Path) -> None:
    """Write model.safetensors in float16, never half-written."""
    weights = {name: weight.detach().half().contiguous() for name, weight in network.named_parameters()}
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        path = Path(folder) / "model.safetensors"
        save_file(weights, path, metadata={"format": "mlx"})
        path.chmod(0o644)
        path.replace(out / "model.safetensors")


class Run:
    """One training run: network, optimisers, progress."""

    def __init__(self, options: argparse.Namespace, writer: Writer, shape: Shape) -> None:
        torch.manual_seed(options.seed)
        self.options, self.writer = options, writer
        self.network = Network(shape)
        matrices = [p for n, p in self.network.named_parameters() if p.dim() == 2 and "embed" not in n]
        others = [p for n, p in self.network.named_parameters() if p.dim() != 2 or "embed" in n]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(matrices, options.muon_lr, weight_decay=options.weight_decay), options.muon_lr),
            (
                torch.optim.AdamW(others, lr=options.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
                options.adam_lr,
            ),
        ]
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.compute = torch.compile(self.network.loss) if options.compile else self.network.loss

    @property
    def progress(self) -> float:
        """Share of the token or the time budget that is used, whichever is larger."""
        return max(self.tokens / self.options.tokens, self.seconds / 60 / self.options.minutes)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        saved = torch.load(path, weights_only=True)
        self.network.load_state_dict(saved["network"])
        for (optimizer, _), state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]

    def save(self, path: Path) -> None:
        """Write a checkpoint, never half-written."""
        state = {
            "network": self.network.state_dict(),
            "optimizers": [o.state_dict() for o, _ in self.optimizers],
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def next_batch(self) -> Batch:
        """The batch of this step; long sequences near the end."""
        return self.writer.batch(
            self.options.seed,
            self.step,
            self.options.batch,
            self.progress >= self.options.long_from,
            self.network.shape.max_position_embeddings,
        )

    def train_step(self) -> tuple[float, str]:
        """One update; returns the loss and the batch's shape."""
        batch = self.next_batch()
        loss = self.compute(
            torch.from_numpy(batch.tokens),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.rows),
            torch.from_numpy(batch.targets),
        )
        loss.backward()
        factor = rate(self.progress, self.step, self.options.decay_from)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer, base in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
        self.network.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += batch.tokens.size
        return loss.item(), f"{batch.tokens.shape[0]}x{batch.tokens.shape[1]}"


def train(run: Run, options: argparse.Namespace) -> None:
    """Train until the budget or the time is used up; save and export on the way and at the end."""
    checkpoint = options.work / "checkpoint.pt"
    if checkpoint.exists():
        run.load(checkpoint)
        print(f"going on from step {run.step}, {run.tokens / 1e6:.2f}M tokens", flush=True)
    begun, base = time.monotonic(), run.seconds
    saved = begun
    losses: list[float] = []
    since, seen = begun, run.tokens
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    while run.progress < 1.0 and not stop:
        loss, layout = run.train_step()
        losses.append(loss)
        now = time.monotonic()
        run.seconds = base + now - begun
        if run.step % 20 == 0:
            speed = (run.tokens - seen) / (now - since)
            print(
                f"step {run.step} {run.tokens / 1e6:.2f}M tokens {run.seconds / 60:.1f} min {speed:.0f} tok/s "
                f"loss {sum(losses) / len(losses):.4f} last {layout}",
                flush=True,
            )
            losses, since, seen = [], now, run.tokens
        if now - saved > SAVE_EVERY_S:
            saved = now
            run.save(checkpoint)
            export(run.network, options.out)
    run.save(checkpoint)
    export(run.network, options.out)
    print(f"stopped at {run.tokens / 1e6:.2f}M tokens after {run.seconds / 60:.1f} min of training", flush=True)


def main() -> int:
    """Entry point."""
    options = arguments()
    shape = Shape()
    tokenizer = load_tokenizer(options.work, options.out, options.seed, shape)
    check_rendering(options.out, options.seed)
    if options.check or options.tokenizer_only:
        return 0
    torch.set_num_threads(options.threads)
    run = Run(options, Writer(tokenizer), shape)
    print(f"{sum(p.numel() for p in run.network.parameters()) / 1e6:.2f}M parameters", flush=True)
    train(run, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
