"""Hidden token attribution of a model: where its states are, and what has to be off while derivatives are taken."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .adapters import encoder_layers
from .identifiability.attribution import Attribution, input_contributions
from .recording import record_heads


def hidden_token_attribution(
    model: nn.Module,
    batch: Mapping[str, Any],
    probes: int | None = None,
    source: Literal["embedding", "previous"] = "embedding",
    seed: int = 0,
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Attribution:
    """How much each input token contributes to each hidden token of every layer (1908.04211, section 5).

    See `input_contributions` for the formula and the standard errors. Derivatives are those of the model in eval mode,
    in its own precision but at least in float32. Afterwards the model is as it was.

    Args:
        model: Any model that `record_heads` knows and whose layers are items of a list, or a layer alone.
        batch: The arguments of the model's forward, by name.
        probes: Random tangents per input token, at least 2, for an estimate; None: exact, with as many tangents per
            token as the embedding is wide.
        source: What contributes: the output of the embedding, or the input of the layer itself ("previous").
        seed: Chooses the probes.
        chunk: Tangents per product, which memory grows with; None: a choice for some hundred megabytes.
        progress: Called with the tangents done and all tangents after every product.

    Returns:
        For each layer contributions and standard errors, *(batch, n, n)*, float64, on the CPU; row i is the hidden
        token, column j the input token. Rows of tokens sum to 1; rows and columns of padding are 0.

    Raises:
        ValueError: If the model or its layers are not known, a derivative is not finite, or an argument is wrong.
    """
    if source not in ("embedding", "previous"):
        raise ValueError(f"source is {source!r}: choose 'embedding' or 'previous'.")
    layers = list(dict.fromkeys(encoder_layers(model)))
    with _forward_mode(model, batch) as run:
        with record_heads(model, layers=[0]) as records:
            inputs, outputs = _pass(run, layers)
        if any(hidden.shape[:-1] != inputs[0].shape[:-1] for hidden in outputs) or not inputs[0].is_floating_point():
            raise ValueError(f"The layers of {type(model).__name__} were not found: they have to be items of a list.")
        # PyTorch's layers, swapped or not, say so where tensors are (token, batch, d_model).
        token_first = not all(getattr(module, "batch_first", True) for module in layers[0].modules())

        def states(stacked: Tensor) -> list[Tensor]:
            own = [(x.transpose(0, 1) if token_first else x).reshape(inputs[0].shape) for x in stacked]
            return [_texts_first(state, token_first) for state in _pass(run, layers, own)[1]]

        replaced = inputs[:1] if source == "embedding" else inputs
        stacked = torch.stack([_texts_first(hidden, token_first) for hidden in replaced])
        return input_contributions(states, stacked, records[0].keep, probes, seed, chunk, progress)


class _LastLayerDone(Exception):  # noqa: N818 (no error)
    """Ends a model's forward call early."""


def _pass(
    run: Callable[[], Any], layers: list[nn.Module], inputs: Sequence[Tensor] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """What goes into and comes out of each layer when the model runs, the first inputs replaced by `inputs`."""
    seen: list[Tensor] = []
    states: list[Tensor] = []

    def enter(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        hidden = args[0] if args else kwargs[next(iter(inspect.signature(layer.forward).parameters))]
        new = inputs[len(seen)] if len(seen) < len(inputs) else hidden
        seen.append(new)
        args = tuple(new if value is hidden else value for value in args)
        return args, {name: new if value is hidden else value for name, value in kwargs.items()}

    def leave(layer: nn.Module, args: tuple, output: Any) -> None:
        states.append(output if isinstance(output, Tensor) else output[0])
        if len(states) == len(layers):
            raise _LastLayerDone

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(leave).remove)
        with suppress(_LastLayerDone):
            run()
    return seen, states


def _texts_first(hidden: Tensor, token_first: bool) -> Tensor:
    """A layer's input or output as *(batch, token, d_model)*."""
    if hidden.ndim == 2:
        return hidden[None]
    return hidden.transpose(0, 1) if token_first else hidden


@contextmanager
def _forward_mode(model: nn.Module, batch: Mapping[str, Any]) -> Iterator[Callable[[], Any]]:
    """The model's forward call on `batch`, such that `torch.func.jvp` can go through; all is as before afterwards."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    floating = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in floating.values()), torch.float32)
    weights = {name: tensor.to(dtype) for name, tensor in floating.items()}
    cast = {
        id(value): value.to(dtype)
        for value in batch.values()
        if torch.is_tensor(value) and torch.is_floating_point(value)
    }
    arguments = {name: cast.get(id(value), value) for name, value in batch.items()}
    training = [module for module in model.modules() if module.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    device = next(iter(tensors.values())).device.type
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast(device, enabled=False),
            sdpa_kernel(SDPBackend.MATH),
        ):
            yield lambda: torch.func.functional_call(model, weights, (), arguments)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in training:
            module.training = True
