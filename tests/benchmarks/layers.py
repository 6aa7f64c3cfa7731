"""Training throughput of encoder layers, ours beside PyTorch's and BERT's: `python tests/benchmarks/layers.py`.

Forward, backward and step of two layers with dropout, AdamW and padding, 4,096 tokens a batch, float32; seconds of each
in units of the preset `standard`, beside what its arithmetic is in the same units.
"""

from collections.abc import Callable

import torch
from _timing import medians, save
from identiformer.models.layers.presets import PRESETS
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder

LAYERS, HEADS, TOKENS, DROPOUT, ROUNDS = 2, 8, 4096, 0.1, 7
LENGTHS, WIDTHS = (32, 128, 512), (128, 384)
SQUARE = 2048  # of the matrix product that tells what the machine can do

Encode = Callable[[Tensor, Tensor], Tensor]


def ours(preset: str, d_model: int) -> tuple[nn.Module, Encode]:
    """Layers of a preset."""
    layers = nn.ModuleList(PRESETS[preset](d_model, HEADS, dropout=DROPOUT, norm_first=True) for _ in range(LAYERS))

    def encode(hidden: Tensor, keep: Tensor) -> Tensor:
        for layer in layers:
            hidden = layer(hidden, keep)
        return hidden

    return layers, encode


def pytorchs(d_model: int) -> tuple[nn.Module, Encode]:
    """`nn.TransformerEncoder`."""
    options = {"activation": "gelu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(d_model, HEADS, 4 * d_model, DROPOUT, **options)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return encoder, lambda hidden, keep: encoder(hidden, src_key_padding_mask=~keep)


def berts(d_model: int) -> tuple[nn.Module, Encode]:
    """BERT's layers in transformers, on SDPA."""
    sizes = {"hidden_size": d_model, "num_attention_heads": HEADS, "intermediate_size": 4 * d_model}
    config = BertConfig(num_hidden_layers=LAYERS, attn_implementation="sdpa", **sizes)
    encoder = BertEncoder(config)
    return encoder, lambda hidden, keep: encoder(hidden, attention_mask=keep[:, None, None])[0]


def train_step(module: nn.Module, encode: Encode, hidden: Tensor, keep: Tensor) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def step() -> None:
        encode(hidden, keep).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def arithmetic(encode: Encode, hidden: Tensor, keep: Tensor) -> int:
    """Floating-point operations of forward and backward."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        encode(hidden, keep).square().mean().backward()
    return counter.get_total_flops()


def batch(n: int, d_model: int) -> tuple[Tensor, Tensor]:
    """Hidden states and which tokens are kept, of texts of 3/4 n to n tokens."""
    generator = torch.Generator().manual_seed(n)
    texts = TOKENS // n
    lengths = torch.randint(3 * n // 4, n + 1, (texts, 1), generator=generator)
    lengths[0] = n
    return torch.randn(texts, n, d_model, generator=generator), torch.arange(n) < lengths


def measure(d_model: int, n: int) -> dict[str, dict[str, float]]:
    """Seconds, FLOPs and the share of the machine's speed, by the layers' name."""
    hidden, keep = batch(n, d_model)
    encoders = {preset: ours(preset, d_model) for preset in PRESETS}
    encoders |= {"nn.TransformerEncoder": pytorchs(d_model), "BERT": berts(d_model)}
    square = torch.randn(SQUARE, SQUARE)
    steps = {name: train_step(*encoder, hidden, keep) for name, encoder in encoders.items()}
    seconds = medians(ROUNDS, steps | {"product": lambda: square @ square})
    speed = 2 * SQUARE**3 / seconds["product"]
    flops = {name: arithmetic(encode, hidden, keep) for name, (_, encode) in encoders.items()}
    return {
        name: {
            "seconds": seconds[name],
            "tokens_per_second": TOKENS / seconds[name],
            "time_ratio": seconds[name] / seconds["standard"],
            "flop_ratio": flops[name] / flops["standard"],
            "utilisation": flops[name] / seconds[name] / speed,
        }
        for name in encoders
    }


def main() -> None:
    """Print a line per size and kind of layer."""
    results = []
    print(f"{'d_model':>7} {'n':>4} {'layers':22} {'tokens/s':>9} {'time':>6} {'FLOPs':>6} {'utilisation':>11}")
    for d_model in WIDTHS:
        for n in LENGTHS:
            for name, found in measure(d_model, n).items():
                results.append({"d_model": d_model, "n": n, "layers": name, **found})
                ratios = f"{found['time_ratio']:6.2f} {found['flop_ratio']:6.2f} {found['utilisation']:11.2f}"
                print(f"{d_model:7} {n:4} {name:22} {found['tokens_per_second']:9,.0f} {ratios}", flush=True)
    save("layers", results)


if __name__ == "__main__":
    main()
