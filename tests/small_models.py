"""Small models of every structure that an adapter knows, in float64, with random parameters everywhere."""

from functools import cache

import torch
from asserting import randomise
from torch import Tensor, nn

FAMILY = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Data2VecText", "Electra", "Ernie", "DistilBert", "MPNet")
TRANSFORMERS = (*FAMILY, "ModernBert")
ENCODERS = {
    "encoder": {},
    "encoder, pre-norm": {"norm_first": True},
    "encoder, no bias": {"bias": False},
    "encoder, token first": {"batch_first": False},
}
OURS = ("standard", "identifiable", "shared_value")
STRUCTURES = (*TRANSFORMERS, *ENCODERS, *OURS)

TEXTS = torch.randint(3, 29, (3, 9), generator=torch.Generator().manual_seed(0))
KEEP = torch.arange(9) < torch.tensor([[9], [6], [2]])


class TorchClassifier(nn.Module):
    """`nn.TransformerEncoder` between an embedding and a linear map of each text's first token."""

    def __init__(self, *, batch_first: bool = True, **options):
        super().__init__()
        self.batch_first = batch_first
        self.embedding, self.position = nn.Embedding(29, 24), nn.Parameter(torch.zeros(40, 24))
        layer = nn.TransformerEncoderLayer(24, 4, dim_feedforward=31, batch_first=batch_first, **options)
        nested = batch_first and options.get("bias", True) and not options.get("norm_first", False)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.classifier = nn.Linear(24, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden = self.embedding(input_ids) + self.position[: input_ids.shape[1]]
        hidden = hidden if self.batch_first else hidden.transpose(0, 1)
        padding = None if attention_mask is None else attention_mask == 0
        hidden = self.encoder(hidden, src_key_padding_mask=padding)
        return self.classifier(hidden[:, 0] if self.batch_first else hidden[0])


def small_model(name: str, **options) -> nn.Module:
    """A new classifier of two layers, in evaluation mode; `options` go to the config of one of transformers."""
    torch.manual_seed(0)
    if name in ENCODERS:
        model = TorchClassifier(**ENCODERS[name])
    else:
        model = _ours(name) if name in OURS else _transformer(name, **options)
    return randomise(model, std=0.2).double().eval()


@cache
def shared_model(name: str) -> nn.Module:
    """The same, made once: not to be changed."""
    return small_model(name)


def run(model: nn.Module, texts: Tensor = TEXTS, keep: Tensor | None = KEEP, **options):
    """The model's logits, without gradients."""
    with torch.no_grad():
        output = model(input_ids=texts, attention_mask=None if keep is None else keep.long(), **options)
    return output if isinstance(output, Tensor) else output.logits


def _ours(preset: str) -> nn.Module:
    from identiformer.models import IdentiformerConfig, IdentiformerForSequenceClassification

    sizes = {"standard": {}, "identifiable": {"d_key": 7, "d_value": 24, "merge_heads": "sum"}}
    sizes["shared_value"] = {"d_key": 7, "d_value": 24, "num_value_heads": 1, "merge_heads": "mean"}
    config = IdentiformerConfig(vocab_size=29, d_model=24, num_heads=3, num_layers=2, **sizes[preset])
    return IdentiformerForSequenceClassification(config)


def _transformer(name: str, **options) -> nn.Module:
    import transformers

    options = {"vocab_size": 29, "max_position_embeddings": 40, "pad_token_id": 0, "num_labels": 3, **options}
    options |= {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 31}
    options |= {"bos_token_id": 1, "eos_token_id": 2}
    if name == "ModernBert":  # a layer that looks at everything, and one that looks at two tokens to either side
        options |= {"cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2, "local_attention": 4}
    if name == "DistilBert":  # whose width of the feed-forward has a name of its own
        options["hidden_dim"] = options.pop("intermediate_size")
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}ForSequenceClassification")(config)
