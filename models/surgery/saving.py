"""How a swapped model of transformers is saved and loaded again: under a `model_type` of its own."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from .. import modeling  # noqa: F401  registers our own model type
from ..adapters import Heads, attention_modules, heads, replace
from ..configuration import AttentionsUnderAnyKernel
from ..layers.attention import MultiHeadAttention
from ..layers.presets import AttentionSizes

MODEL_TYPES = (
    *("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra", "ernie", "distilbert", "mpnet"),
    *("modernbert", "identiformer"),
)
TASKS: Any = (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)


class _SwappedModel:
    """Mixed into a model class: what its config says was swapped is swapped, before weights are loaded."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]
        model: Any = self
        modules = attention_modules(model)
        for swap in config.swapped:
            module, sizes = modules[swap["layer"]], {name: swap[name] for name in AttentionSizes._fields}
            own = heads(module)
            assert own is not None
            replace(module, new_attention(own, AttentionSizes(**sizes)), model)


def new_attention(own: Heads, sizes: AttentionSizes) -> MultiHeadAttention:
    """Freshly initialised attention of some sizes for a module with the heads `own`."""
    return MultiHeadAttention(d_model=own.d_model, num_heads=own.num_heads, dropout=own.dropout, **sizes._asdict())


def note_swap(model: nn.Module, swapped: Sequence[nn.Module]) -> None:
    """Write into the config of each model of transformers in `model` what was swapped in it."""
    for part in _outermost(model):
        if any(module in swapped for module in part.modules()):
            config: Any = part.config
            config.__class__ = swapped_config(type(config))
            vars(config).pop("model_type", None)  # where somebody gave it by hand
            config.swapped = [
                {"layer": layer, **AttentionSizes.of(module)._asdict()}
                for layer, module in enumerate(attention_modules(part))
                if isinstance(module, MultiHeadAttention)
            ]


def _outermost(module: nn.Module) -> Iterator[PreTrainedModel]:
    if isinstance(module, PreTrainedModel):
        yield module
    else:
        for child in module.children():
            yield from _outermost(child)


@cache
def swapped_config(base: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """The config class of swapped models whose own config class is `base`."""
    if hasattr(base, "swapped"):
        return base
    members = {
        "__module__": __name__,
        "__annotations__": {"swapped": list[dict[str, Any]] | None},
        "swapped": None,
        "model_type": f"identiformer-{base.model_type}",
    }
    bases = (base,) if issubclass(base, AttentionsUnderAnyKernel) else (AttentionsUnderAnyKernel, base)
    return strict(type(f"Swapped{base.__name__}", bases, members))


def _register() -> None:
    """Let the Auto classes find swapped models of every type and task that can be."""
    for model_type in MODEL_TYPES:
        base = CONFIG_MAPPING[model_type]
        config = swapped_config(base)
        AutoConfig.register(config.model_type, config)
        for task in TASKS:
            if base in task._model_mapping:
                model = task._model_mapping[base]
                members = {"__module__": __name__, "config_class": config}
                task.register(config, type(f"Swapped{model.__name__}", (_SwappedModel, model), members))


_register()
