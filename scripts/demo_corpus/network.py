"""Qwen3 in plain PyTorch, with the parameter names that mlx-lm and transformers load."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network; the defaults are those of the shipped model."""

    vocab_size: int = 2560
    hidden_size: int = 256
    num_hidden_layers: int = 6
    intermediate_size: int = 512
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 8192
    rope_theta: float = 100000.0
    rms_norm_eps: float = 1e-6

    def config(self) -> dict[str, object]:
        """config.json for mlx-lm and transformers."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **asdict(self),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "initializer_range": 0.02,
            "torch_dtype": "float16",
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "rope_scaling": None,
            "use_sliding_window": False,
            "sliding_window": None,
        }


class Norm(nn.Module):
    """RMSNorm with weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale * self.weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on [B, heads, T, head_dim]; first and second half of a head form the pairs."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with normed queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, shape.hidden_size, bias=False)
        self.q_norm = Norm(self.size, shape.rms_norm_eps)
        self.k_norm = Norm(self.size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(
            F.linear(x, self.q_proj.weight.to(x.dtype)).view(batch, length, self.heads, self.size)
        ).transpose(1, 2)
        k = self.k_norm(
            F.linear(x, self.k_proj.weight.to(x.dtype)).view(batch, length, self.kv_heads, self.size)
        ).transpose(1, 2)
        v = F.linear(x, self.v_proj.weight.to(x.dtype)).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(out.transpose(1, 2).reshape(batch, length, -1), self.o_proj.weight.to(x.dtype))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(F.linear(x, self.gate_proj.weight.to(x.dtype))) * F.linear(x, self.up_proj.weight.to(x.dtype))
        return F.linear(inner, self.down_proj.weight.to(x.dtype))


class Layer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm; state_dict keys match those under `model.`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed_tokens.weight).to(cos.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Network(nn.Module):
    """Causal language model with tied embeddings, computing in `dtype` over float32 weights."""

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = Trunk(shape)
        depth = (2 * shape.num_hidden_layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 0.02 if "embed" in name else weight.shape[1] ** -0.5
                nn.init.normal_(weight, std=scale * (depth if "o_proj" in name or "down_proj" in name else 1.0))
        inverse = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), inverse)
        self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def loss(self, tokens: Tensor, positions: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy. tokens, positions: [B, T]; rows: flat places whose next token, `targets`, counts."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        hidden = self.model(tokens, cos, sin).flatten(0, 1)[rows]
        logits = F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))
        return F.cross_entropy(logits.float(), targets)
