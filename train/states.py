"""Hidden states of a model's tokens over many texts, with what words and positions alone are embedded as."""

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from rich.progress import Progress
from torch import Tensor, nn

from ..models import record_states
from ..models.recording import position_embedding
from .errors import UserError
from .predicting import Loaded


class TokenStates(NamedTuple):
    """The tokens of all texts, one text after the other.

    Attributes:
        ids: Words, *(N,)*.
        texts: Numbers of the texts, *(N,)*.
        states: Hidden states, *(layers + 1, N, d)*, the embedding output first.
        words: Word embeddings alone, *(N, d)*.
        positions: Position embeddings alone, likewise; None where the model has none.
        permuted: Hidden states when position ids are permuted at random in each text; None likewise.
    """

    ids: Tensor
    texts: Tensor
    states: Tensor
    words: Tensor
    positions: Tensor | None
    permuted: Tensor | None


def read_states(loaded: Loaded, rows: Dataset, *, special: bool, seed: int, progress: Progress) -> TokenStates:
    """Run the model on one text after the other, so that nothing is padded.

    Args:
        loaded: The model; it goes to the GPU if there is one.
        rows: Tokenised rows. Those without two tokens to look at are left out.
        special: Whether tokens that the tokenizer adds are among these.
        seed: Of the permutations of positions.
        progress: Where to show how far it is.

    Raises:
        UserError: If no text is left, or a state is not finite.
        ValueError: If the model holds no known attention module.
    """
    model: Any = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore
    unknown = loaded.tokenizer.unk_token_id  # that is a word
    added = torch.tensor([] if special else [n for n in loaded.tokenizer.all_special_ids if n != unknown])
    lines: Any = rows
    texts = {line["row"]: torch.tensor(line["input_ids"], dtype=torch.long) for line in lines}
    kept = {row: (~torch.isin(ids, added)).nonzero()[:, 0] for row, ids in texts.items()}
    kept = {row: places for row, places in kept.items() if len(places) > 1}
    if not kept:
        raise UserError("There is no text of two tokens or more.")
    embedding = position_embedding(model, texts[next(iter(kept))][None].to(model.device))
    generator, parts = torch.Generator().manual_seed(seed), []
    for row, places in progress.track(kept.items(), description="Reading"):
        order = torch.randperm(len(texts[row]), generator=generator)
        parts.append(_read(model, embedding, *(part.to(model.device) for part in (texts[row], places, order))))
        if bad := [layer for layer, state in enumerate(parts[-1][0]) if not state.isfinite().all()]:
            raise UserError(f"Row {row}: the states of layer {bad[0]} hold a number that is not finite.")
    ids = torch.cat([texts[row][places] for row, places in kept.items()])
    numbers = torch.arange(len(kept)).repeat_interleave(torch.tensor([len(places) for places in kept.values()]))
    tensors: Any = (None if part[0] is None else torch.cat(part, -2) for part in zip(*parts, strict=True))
    return TokenStates(ids.to(model.device), numbers.to(model.device), *tensors)


def _read(
    model: Any, embedding: nn.Embedding | None, ids: Tensor, places: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """States, words, positions and permuted states of one text, as in `TokenStates`, at some places."""
    words = model.get_input_embeddings()(ids[places]).float()
    states, positions = _run(model, embedding, ids, torch.arange(len(ids), device=ids.device))
    if positions is None:
        return states[:, places], words, None, None
    return states[:, places], words, positions[places], _run(model, embedding, ids, order)[0][:, places]


def _run(model: nn.Module, embedding: nn.Embedding | None, ids: Tensor, order: Tensor) -> tuple[Tensor, Tensor | None]:
    """Hidden states of a text and position embeddings, positions being given in an order *(n,)*."""
    numbers: list[Tensor] = []

    def reorder(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        numbers.append(args[0][..., order])
        return (numbers[0],)

    with ExitStack() as stack:
        if embedding is not None:
            stack.callback(embedding.register_forward_pre_hook(reorder).remove)
        states = stack.enter_context(record_states(model))
        model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None])
    positions = None if embedding is None else embedding(numbers[0]).reshape(len(ids), -1).float()
    return torch.stack([state.reshape(len(ids), -1) for state in states]).float(), positions
