"""One vector for a text from its tokens' vectors. A text of no kept tokens gives 0."""

from jaxtyping import Bool, Float
from torch import Tensor

from .masks import zero_padding


def mean_pool(
    hidden: Float[Tensor, "batch token d"], keep: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "batch d"]:
    """The mean over the kept tokens."""
    if keep is None:
        return hidden.mean(1)
    return zero_padding(hidden, keep).sum(1) / keep.sum(1, keepdim=True).clamp(min=1)


def first_pool(
    hidden: Float[Tensor, "batch token d"], keep: Bool[Tensor, "batch token"] | None
) -> Float[Tensor, "batch d"]:
    """The first kept token, wherever the padding is."""
    if keep is None:
        return hidden[:, 0]
    first = keep & (keep.cumsum(1) == 1)
    return zero_padding(hidden, first).sum(1)


POOLING = {"mean": mean_pool, "first": first_pool}
