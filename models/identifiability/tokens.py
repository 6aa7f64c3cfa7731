"""Token identifiability: how often a hidden token still points to its own input among the inputs of its text.

A probe learns on some texts and is asked about others, so that a rate tells what states hold, not what a map remembers.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

PROBES = ("identity", "linear", "mlp")
DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {  # what is to be compared by |a - b|
    "cosine": lambda vectors: F.normalize(vectors, dim=-1),
    "l2": lambda vectors: vectors,
}
HELD_OUT = 0.15  # of the texts for validation, and as many for the rate
RIDGES = 10.0 ** torch.arange(-9, 1, dtype=torch.float64)  # of the states' largest variance
STEPS, CHECK, BATCH, LEARNING_RATE = 300, 30, 256, 5e-3
RESAMPLES = 2000


class TokenIdentifiability(NamedTuple):
    """How many tokens of the test texts are identified, each field of shape *(layers + 1,)*.

    Attributes:
        rate: Share of the tokens.
        lower: Lower end of its 95 % interval, by the bootstrap over texts; of no width where the rate is 0 or 1.
        upper: Upper end.
        chance: What can be had without a look at the states: the share of each text's most frequent word, which is that
            of a single token where an equal word does not count.
    """

    rate: Float[Tensor, " layers"]
    lower: Float[Tensor, " layers"]
    upper: Float[Tensor, " layers"]
    chance: Float[Tensor, " layers"]

    @property
    def at_chance(self) -> Bool[Tensor, " layers"]:
        """Where the interval reaches down to chance."""
        return self.lower <= self.chance


class _Split(NamedTuple):
    """Positions of the tokens of the texts to learn from, to choose by and to ask about."""

    train: Tensor
    validation: Tensor
    test: Tensor


class _Search(NamedTuple):
    """Where inputs are looked for: among those of the same text."""

    inputs: Tensor
    texts: Tensor
    ids: Tensor
    distance: str

    def found(self, mapped: Tensor, tokens: Tensor) -> Tensor:
        """Whether *(..., tokens, d)* are nearer to an input of their own id than to any other of their text."""
        place = DISTANCES[self.distance]
        mapped, inputs = place(mapped.double()), place(self.inputs[tokens].double())
        texts, ids = self.texts[tokens], self.ids[tokens]
        found = torch.zeros(mapped.shape[:-1], dtype=torch.bool, device=mapped.device)
        for text in texts.unique():
            here = (texts == text).nonzero()[:, 0]
            distinct, which = inputs[here].unique(dim=0, return_inverse=True)  # so that equal inputs are equally near
            distance = torch.cdist(mapped[..., here, :], distinct)[..., which]
            same = ids[here, None] == ids[here]
            own, other = (distance.masked_fill(out, torch.inf).amin(-1) for out in (~same, same))
            found[..., here] = own < other
        return found


def token_identifiability(
    states: Float[Tensor, "layers tokens d"],
    inputs: Float[Tensor, "tokens d_input"],
    texts: Int[Tensor, " tokens"],
    ids: Int[Tensor, " tokens"] | None = None,
    probe: str = "linear",
    distance: str = "cosine",
    lookup: str | None = None,
    train_share: float = 1.0,
    hidden: int | None = None,
    dropout: float = 0.1,
    seed: int = 0,
) -> TokenIdentifiability:
    """Share of tokens i whose `g(e_i)` is nearer to their own input x_i than to any other input of the same text.

    Source: 1908.04211, section 4. The probe g, learnt for each layer by itself, is the identity, a linear map, or a
    perceptron with one hidden layer. Texts are split at random: 70 % to learn from, 15 % to choose by, 15 % for the
    rate. The linear map starts at ridge regression, exact where inputs are a linear map of states, and the perceptron
    at that map; Adam goes on by the distance. What identifies most on validation is kept, be it the start, and of equal
    rates what is nearest.

    With another layer's states as `inputs` this measures maps between layers; with word or position embeddings alone,
    what states hold of either.

    Args:
        states: Hidden states e of every layer.
        inputs: What has to be found, x.
        texts: The number of each token's text. Texts of one token are left out.
        ids: Words: an equal word elsewhere in the text counts as found. None: only the token itself counts. A tie with
            what does not count is a miss.
        probe: "identity", "linear" or "mlp".
        distance: What the probe learns by: "cosine" or "l2".
        lookup: What is near in the search; None: as `distance`.
        train_share: The part of the training texts that is used.
        hidden: Hidden units of the perceptron. None: 2 d, which hold the linear map, but at least 128.
        dropout: Probability of dropping a hidden unit while it learns.
        seed: Of the split, of learning and of the bootstrap.

    Shape:
        states: *(layers + 1, N, d)*; inputs: *(N, d_input)*, d for the identity; texts and ids: *(N,)*.

    Raises:
        ValueError: If an option is none of those, there are not three texts of two tokens, states and inputs differ in
            width under the identity, or a number is not finite; the message names the layer.
    """
    lookup = lookup or distance
    check_options(probe, distance, lookup, train_share, hidden, dropout)
    _check_tensors(states, inputs, probe)
    words = torch.arange(len(texts), device=texts.device) if ids is None else ids
    split, search = _split(texts, train_share, seed), _Search(inputs, texts, words, lookup)
    if probe == "identity":
        mapped = states[:, split.test]
    else:
        units = 0 if probe == "linear" else hidden or max(2 * states.shape[-1], 128)
        learner = _Learner(split, search, distance, units, dropout, seed)
        mapped = torch.stack([learner.map(state) for state in states])
    return _rates(search.found(mapped, split.test), texts[split.test], words[split.test], seed)


def check_options(
    probe: str, distance: str, lookup: str, train_share: float, hidden: int | None, dropout: float
) -> None:
    """Raise the ValueError of `token_identifiability` for an option that is none."""
    if probe not in PROBES:
        raise ValueError(f"There is no probe {probe!r}: choose one of {', '.join(PROBES)}.")
    if unknown := {distance, lookup} - {*DISTANCES}:
        raise ValueError(f"There is no distance {unknown.pop()!r}: choose {' or '.join(DISTANCES)}.")
    if not (0 < train_share <= 1 and 0 <= dropout < 1 and (hidden is None or hidden > 0)):
        given = f"train_share {train_share}, dropout {dropout}, hidden {hidden}"
        raise ValueError(f"It takes 0 < train_share <= 1, 0 <= dropout < 1 and hidden > 0, not {given}.")


def _check_tensors(states: Tensor, inputs: Tensor, probe: str) -> None:
    if probe == "identity" and states.shape[-1] != inputs.shape[-1]:
        raise ValueError(f"States are {states.shape[-1]} wide, inputs {inputs.shape[-1]}: the identity has no answer.")
    if not inputs.isfinite().all():
        raise ValueError("The inputs hold a number that is not finite.")
    if bad := [layer for layer, state in enumerate(states) if not state.isfinite().all()]:
        raise ValueError(f"The states of layer {bad[0]} hold a number that is not finite.")


def _split(texts: Tensor, train_share: float, seed: int) -> _Split:
    """A random split by text, whatever the order of tokens."""
    numbers, lengths = texts.unique(return_counts=True)
    numbers = numbers[lengths > 1]
    if len(numbers) < 3:
        raise ValueError(f"Texts of two tokens or more: {len(numbers)}; it takes at least 3.")
    held_out = max(1, round(HELD_OUT * len(numbers)))
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
    test, validation, train = numbers[order.to(numbers.device)].tensor_split([held_out, 2 * held_out])
    train = train[: max(1, round(train_share * len(train)))]
    return _Split(*(torch.isin(texts, part).nonzero()[:, 0] for part in (train, validation, test)))


class _Learner:
    """What finds the probe of a layer: the one that identifies most validation tokens, and of these the nearest.

    Targets are in units of their spread, for the sake of the learning rate. By cosine, to which lengths do not matter,
    all have the mean length.
    """

    def __init__(self, split: _Split, search: _Search, distance: str, units: int, dropout: float, seed: int):
        self.split, self.search, self.distance = split, search, distance
        self.units, self.dropout, self.seed = units, dropout, seed
        targets = search.inputs.double()
        if distance == "cosine":
            targets = DISTANCES[distance](targets) * targets[split.train].norm(dim=-1).mean()
        spread = targets[split.train].std(0, correction=0).norm() / targets.shape[-1] ** 0.5
        self.unit = torch.where(spread > 0, spread, 1.0)
        self.targets = targets / self.unit

    def map(self, state: Tensor) -> Tensor:
        """What the probe makes of the test tokens of a layer, *(test tokens, d_input)*."""
        with torch.random.fork_rng(devices=[state.device] if state.is_cuda else []):
            torch.manual_seed(self.seed)  # the same for all layers, so that no result depends on another layer
            whitened, probe = self.regress(state.double())
            probe = _perceptron(probe, self.units, self.dropout) if self.units else probe
            self.descend(probe, whitened)
        with torch.no_grad():
            return probe(whitened[self.split.test]) * self.unit

    def regress(self, state: Tensor) -> tuple[Tensor, nn.Linear]:
        """Whitened states, and the best ridge regression on them.

        With `V diag(v) V^T` the training states' covariance, whitened states are `(e - mean) V (v + r)^-1/2`; then the
        map of ridge regression with the ridge r is their covariance with the targets.
        """
        train, validation, _ = self.split
        offset = self.targets[train].mean(0)
        state = state - state[train].mean(0)
        variances, axes = torch.linalg.eigh(state[train].T @ state[train] / len(train))
        state = state @ axes
        covariance = state[train].T @ (self.targets[train] - offset) / len(train)
        ridges = (variances[-1] * RIDGES.to(variances)).clamp(min=torch.finfo(torch.float32).tiny)
        maps = [covariance / (variances + ridge)[:, None] for ridge in ridges]
        best = max(range(len(ridges)), key=lambda place: self.score(state[validation] @ maps[place] + offset))
        root = (variances + ridges[best]).sqrt()
        linear = nn.Linear(len(covariance), covariance.shape[1], device=state.device)
        with torch.no_grad():
            linear.weight.copy_((covariance / root[:, None]).T)
            linear.bias.copy_(offset)
        return (state / root).float(), linear

    def descend(self, probe: nn.Module, whitened: Tensor) -> None:
        """Train on random tokens in one cycle of the learning rate; leave the probe as it was when it was best."""
        train, validation, _ = self.split
        targets = self.targets.float()
        optimizer = torch.optim.Adam(probe.parameters(), fused=True)
        schedule = OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1, cycle_momentum=False)
        best, kept = (-1.0, 0.0), {}
        for step in range(STEPS + 1):
            if step % CHECK == 0:
                with torch.no_grad():
                    score = self.score(probe.eval()(whitened[validation]))
                if score > best:
                    best, kept = score, copy.deepcopy(probe.state_dict())
                probe.train()
            if step < STEPS:
                batch = train[torch.randint(len(train), (BATCH,), device=train.device)]
                with torch.enable_grad():
                    self.loss(probe(whitened[batch]), targets[batch]).backward()
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
        probe.load_state_dict(kept)
        probe.eval()

    def loss(self, mapped: Tensor, targets: Tensor) -> Tensor:
        """Mean square distance."""
        place = DISTANCES[self.distance]
        return (place(mapped) - place(targets)).square().sum(-1).mean()

    def score(self, mapped: Tensor) -> tuple[float, float]:
        """How good what was made of the validation tokens is: the rate, and how near it is."""
        validation = self.split.validation
        rate = self.search.found(mapped * self.unit, validation).double().mean()
        return rate.item(), -self.loss(mapped, self.targets[validation]).item()


def _perceptron(linear: nn.Linear, units: int, dropout: float) -> nn.Sequential:
    """A perceptron that starts as the linear map, since `gelu(x) - gelu(-x) = x`, two units for a singular value."""
    first = nn.Linear(linear.in_features, units, device=linear.weight.device)
    last = nn.Linear(units, linear.out_features, device=linear.weight.device)
    with torch.no_grad():
        left, size, right = torch.linalg.svd(linear.weight, full_matrices=False)
        number = min(units // 2, len(size))
        pairs, shown = right[:number], (left * size)[:, :number]
        first.weight[: 2 * number] = torch.cat([pairs, -pairs])
        first.bias.zero_()
        last.weight.zero_()
        last.weight[:, : 2 * number] = torch.cat([shown, -shown], 1)
        last.bias.copy_(linear.bias)
    return nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), last)


def _rates(found: Tensor, texts: Tensor, ids: Tensor, seed: int) -> TokenIdentifiability:
    """Rates of tokens *(layers, tokens)*, their intervals and chance."""
    _, places, lengths = texts.unique(return_inverse=True, return_counts=True)
    number = len(lengths)
    hits = torch.zeros(number, len(found), dtype=torch.float64, device=found.device)
    hits.index_add_(0, places, found.T.double())
    drawn = torch.randint(number, (RESAMPLES, number), generator=torch.Generator().manual_seed(seed)).to(places)
    times = hits.new_zeros(RESAMPLES, number).scatter_add_(1, drawn, hits.new_ones(drawn.shape))
    rates = times @ hits / (times @ lengths.double())[:, None]
    lower, upper = rates.quantile(hits.new_tensor([0.025, 0.975]), dim=0)
    words, counts = torch.stack([places, ids]).unique(dim=1, return_counts=True)
    most = torch.zeros_like(lengths).scatter_reduce_(0, words[0], counts, "amax").double()
    rate, chance = hits.sum(0) / lengths.sum(), most.sum() / lengths.sum()
    return TokenIdentifiability(rate, lower, upper, chance.expand_as(rate))
