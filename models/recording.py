"""Recording what each attention head of a model saw and did, and its hidden states, whatever kernel it runs on."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from .adapters import Affine, Call, Heads, attention_modules, encoder_layers
from .adapters import heads as heads_of
from .functional.attention import attention_weights, rotate
from .functional.masks import zero_padding


@dataclass(frozen=True)
class HeadRecord:
    """One forward call of one attention module.

    It keeps the module's input as it ran. Queries, keys, values and weights are computed from it and from the module's
    own parameters each time they are asked for: in float64 (on the CPU where the device has none), without dropout,
    gradients or autocast. Ask before the model changes; afterwards a RuntimeError says so.

    Attributes:
        layer: Number of the attention module in the model, from 0.
        call: What the module was called with.
        heads: The module's own maps.
    """

    layer: int
    call: Call
    heads: Heads
    versions: tuple[int, ...]

    @classmethod
    def of(cls, layer: int, heads: Heads, call: Call) -> "HeadRecord":
        """The record of a call of a module with these heads."""
        return cls(layer, _detached(call), heads, _versions(heads))

    @property
    def hidden(self) -> Tensor:
        """The module's input, *(batch, token, d_model)*, as it ran."""
        return self.call.hidden

    @property
    def keep(self) -> Tensor | None:
        """True for tokens, False for padding, *(batch, token)*; None when nothing is padded."""
        return self.call.keep

    @property
    def bias(self) -> Tensor | None:
        """Whatever was added to the scores but `keep`; None if nothing was."""
        return self.call.bias

    @property
    def merge_heads(self) -> str:
        """How the heads are merged: "concat", "sum" or "mean"."""
        return self.heads.merge_heads

    @property
    def query(self) -> Tensor:
        """Queries, *(batch, head, token, d_key)*, turned by their positions where the model does that."""
        return self._turned(self._project(self.heads.query, self.hidden, self.heads.num_heads))

    @property
    def key(self) -> Tensor:
        """Keys, *(batch, head, token, d_key)*, turned likewise."""
        return self._turned(self._project(self.heads.key, self.call.key_hidden, self.heads.num_heads))

    @property
    def value(self) -> Tensor:
        """Values, biases included, *(batch, head, token, d_value)*; expanded where heads share them."""
        value = self._project(self.heads.value, self.call.value_hidden, self.heads.num_value_heads)
        return self._per_head(value, dim=1)

    @property
    def output_map(self) -> Tensor:
        """Each head's block of the output map, *(head, d_value, d_model)*; expanded where heads share it."""
        self._refuse_changed()
        return self._per_head(_exact(self.heads.output_map.detach()), dim=0)

    @property
    def weights(self) -> Tensor:
        """Attention weights, *(batch, head, query, key)*; 0 for padded keys."""
        query, key = self.query, self.key
        keep = None if self.keep is None else self.keep.to(query.device)
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            return attention_weights(query, key, keep, None if self.bias is None else _exact(self.bias))

    def select(self, texts: Tensor) -> "HeadRecord":
        """The record of some of the batch's texts, given by their positions *(texts,)*."""
        return replace(self, call=self.call.select(texts))

    def _refuse_changed(self) -> None:
        if self.versions != _versions(self.heads):
            raise RuntimeError(
                f"Layer {self.layer}: the model changed after it was recorded; read records before that."
            )

    def _turned(self, projected: Tensor) -> Tensor:
        if self.call.rotation is None:
            return projected
        return rotate(projected, *map(_exact, self.call.rotation))

    def _project(self, affine: Affine, hidden: Tensor | None, number: int) -> Tensor:
        self._refuse_changed()
        hidden = _exact(zero_padding(self.hidden if hidden is None else hidden, self.keep))
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            return affine(hidden).unflatten(-1, (number, -1)).transpose(1, 2)

    def _per_head(self, tensor: Tensor, dim: int) -> Tensor:
        """Expand *(..., groups, ...)* to *(..., heads, ...)*, neighbouring heads sharing a group."""
        sharing = self.heads.num_heads // tensor.shape[dim]
        shape = (*tensor.shape[: dim + 1], sharing, *tensor.shape[dim + 1 :])
        return tensor.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)


@contextmanager
def record_heads(model: nn.Module, layers: Iterable[int] | None = None) -> Iterator[list[HeadRecord]]:
    """Record every forward call of every attention module of `model` within the context.

    The model runs as it would without: same kernel, mode, dtype and outputs.

    Args:
        model: Any model that holds attention modules with an adapter.
        layers: Numbers of the attention modules to record, from 0. None: all.

    Yields:
        The records, one per attention module and forward call, in the order of the calls.

    Raises:
        ValueError: If the model holds no known attention module, or not as many as `layers` asks for.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=96, num_attention_heads=4, num_hidden_layers=2)).eval()
        >>> with record_heads(model) as records:
        ...     output = model(input_ids=torch.tensor([[101, 1037, 2307, 2143, 102]]))
        >>> [record.weights.shape for record in records]
        [torch.Size([1, 4, 5, 5]), torch.Size([1, 4, 5, 5])]
    """
    modules = attention_modules(model)
    wanted = range(len(modules)) if layers is None else sorted(set(layers))
    if missing := [layer for layer in wanted if not 0 <= layer < len(modules)]:
        raise ValueError(f"There is no layer {missing[0]}: the model has layers 0 to {len(modules) - 1}.")
    records: list[HeadRecord] = []
    with ExitStack() as stack:
        for layer in wanted:
            stack.enter_context(_wrapped(modules[layer], _recorder(layer, records)))
        yield records


@contextmanager
def record_states(model: nn.Module) -> Iterator[list[Tensor]]:
    """Record the hidden states of `model` within the context; the model runs as it would without.

    Args:
        model: Any model that holds attention modules with an adapter.

    Yields:
        For every forward call first what the first encoder layer is given, the embedding output, and then what each
        layer gives, as the layers have them: *(batch, token, d_model)* for most.

    Raises:
        ValueError: If the model holds no known attention module, or its layers are not items of a list.
    """
    states: list[Tensor] = []
    layers = list(dict.fromkeys(encoder_layers(model)))

    def record(module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        if module is layers[0]:
            hidden = next(iter(inspect.signature(forward).bind(*args, **kwargs).arguments.values()))
            if not hidden.is_floating_point():
                name = type(model).__name__
                raise ValueError(f"The layers of {name} were not found: they have to be items of a list.")
            states.append(_padded(hidden))
        output = forward(*args, **kwargs)
        states.append(_padded(output[0] if isinstance(output, tuple) else output))
        return output

    with ExitStack() as stack:
        for module in layers:
            stack.enter_context(_wrapped(module, record))
        yield states


def position_embedding(model: nn.Module, input_ids: Tensor) -> nn.Embedding | None:
    """The module that embeds positions, if they are learnt: it is given other numbers for a text of one word repeated.

    Args:
        model: A model that takes `input_ids`.
        input_ids: A text of two tokens or more, *(1, token)*.
    """
    found = []

    def record(module: nn.Module, forward: Callable, numbers: Tensor) -> Tensor:
        if numbers.numel() == numbers.unique().numel() == input_ids.numel():
            found.append(module)
        return forward(numbers)

    repeated = input_ids[:, :1].expand_as(input_ids)
    with ExitStack() as stack, torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                stack.enter_context(_wrapped(module, record))
        model(input_ids=repeated, attention_mask=torch.ones_like(repeated))
    return found[0] if found else None


def _recorder(layer: int, records: list[HeadRecord]) -> Callable:
    def record(module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        heads = heads_of(module)
        assert heads is not None  # attention_modules found it
        records.append(HeadRecord.of(layer, heads, heads.read(*args, **kwargs)))
        return forward(*args, **kwargs)

    return record


@contextmanager
def _wrapped(module: nn.Module, wrapper: Callable) -> Iterator[None]:
    """Have `wrapper(module, forward, ...)` in the place of forward: a hook would turn off PyTorch's encoder kernel."""
    forward, own = module.forward, vars(module).get("forward")

    @wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(module, forward, *args, **kwargs)

    module.forward = wrapped
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _padded(hidden: Tensor) -> Tensor:
    """A detached state; PyTorch's encoder may have cut padding away."""
    return (hidden.to_padded_tensor(0.0) if hidden.is_nested else hidden).detach()


def _detached(call: Call) -> Call:
    rotation = call.rotation and (call.rotation[0].detach(), call.rotation[1].detach())
    tensors = {name: tensor.detach() for name, tensor in call._asdict().items() if isinstance(tensor, Tensor)}
    return call._replace(**tensors, rotation=rotation)


def _versions(heads: Heads) -> tuple[int, ...]:
    """Numbers that change when a parameter is written in place."""
    tensors = [*heads.query, *heads.key, *heads.value, heads.output.weight]
    return tuple(tensor._version for tensor in tensors if tensor is not None and not tensor.is_inference())


def _exact(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU where its device has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
