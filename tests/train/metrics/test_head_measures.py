import numpy as np
import pytest
import torch
from identiformer.models import IdentiformerConfig, IdentiformerModel, record_heads, standard_layer
from identiformer.models.identifiability import (
    agreement,
    attention_slack,
    effective_attention,
    key_ambiguity,
    null_space,
)
from identiformer.train.metrics import MEASURES, HeadMeasures, measure_heads
from identiformer.train.metrics.head_measures import sample_rows
from references.intervals import slack as slow_slack
from references.key_constrained import ambiguity as slow_ambiguity

LENGTHS = [3, 9, 14, 9, 1, 12, 16]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = IdentiformerConfig(vocab_size=30, d_model=24, num_heads=3, num_layers=2, max_length=16, d_value=5)
    return IdentiformerModel(config).eval()


@pytest.fixture
def texts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 30, (length,), generator=generator) for length in LENGTHS]


def _records(model, texts):
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    with record_heads(model) as records:
        model(ids)
    return records


def _update(metric, model, texts):
    lengths = torch.tensor([len(text) for text in texts])
    for record in _records(model, texts):
        metric.update(record.layer, lengths, measure_heads(record))


def _by_hand(model, texts):
    """Every measure of every (text, layer, head), by the public functions on each text alone."""
    rows = []
    for text in texts:
        for record in _records(model, [text]):
            weights, value, maps = record.weights[0], record.value[0], record.output_map
            space = null_space(value, maps)
            plain = agreement(weights, effective_attention(weights, value, maps))
            summed = agreement(weights, effective_attention(weights, value, maps, preserve_sum=True))
            chosen = sample_rows(torch.ones(1, len(text), dtype=torch.bool), 4, 0)[0].nonzero()[:, 0]
            lower, upper = attention_slack(weights, value, maps, rows=chosen)
            largest = weights[:, chosen].argmax(-1, keepdim=True)
            ambiguity = key_ambiguity(weights, record.key[0], value, maps, rows=chosen).ambiguity
            columns = [space.identifiable, space.nullity, space.simplex_nullity, space.margin]
            columns += [ambiguity.double().mean(-1), (upper - lower).gather(-1, largest)[..., 0].mean(-1)]
            columns += [plain.pearson, summed.pearson, plain.residual, plain.negative_mass]
            rows.append(torch.stack([column.double() for column in columns], -1))
    return torch.cat(rows).numpy()


def test_measures_over_uneven_batches_are_those_of_each_text_alone(model, texts):
    metric = HeadMeasures()
    for batch in (texts[:1], texts[1:5], texts[5:]):
        _update(metric, model, batch)
    summary, rows = metric.compute(), _by_hand(model, texts)
    for name, column in zip(MEASURES, rows.T, strict=True):
        expected = (np.nanmedian if name.endswith("margin") else np.nanmean)(column)
        assert summary[name] == pytest.approx(expected, abs=1e-6)  # float32 inputs, another padding


def test_layers_are_summarised_apart(model, texts):
    metric = HeadMeasures()
    _update(metric, model, texts)
    summary = metric.compute()
    for name in MEASURES:
        if not name.endswith("margin"):
            layers = [summary[f"layer_{layer}/{name}"] for layer in (0, 1)]
            assert np.mean(layers) == pytest.approx(summary[name])


def test_groups_cover_every_text_once_per_layer_and_head(model, texts):
    metric = HeadMeasures()
    _update(metric, model, texts)
    groups = metric.groups()
    counted = {}
    for group in groups:
        assert group.length_to - group.length_from == 7
        inside = sum(group.length_from <= length <= group.length_to for length in LENGTHS)
        assert group.texts == inside
        counted[group.layer, group.head] = counted.get((group.layer, group.head), 0) + group.texts
    assert counted == {(layer, head): len(texts) for layer in range(2) for head in range(3)}
    short = next(group for group in groups if group.length_from == 1)
    assert short.measures["identifiability/identifiable"] == 1.0


def test_what_is_no_number_is_left_out_of_the_means(model):
    metric = HeadMeasures()
    _update(metric, model, [torch.tensor([5])])  # one token: no correlation
    summary = metric.compute()
    assert "effective_attention/pearson" not in summary
    assert summary["identifiability/margin"] == 1.0


def test_padded_query_rows_count_nowhere(model, texts):
    """A row of weights outside `keep` is not 0 in the model; the measures must not see it."""
    together = [measure_heads(record) for record in _records(model, [texts[0], texts[2]])]
    alone = [measure_heads(record) for record in _records(model, [texts[0]])]
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both[:1], one, atol=1e-6, rtol=0, equal_nan=True)


@pytest.fixture
def padded():
    """A layer, two texts of 14 and 9 tokens on the right of 17 positions, and which positions are kept."""
    torch.manual_seed(0)
    keep = torch.arange(17) >= torch.tensor([[3], [8]])
    return standard_layer(24, 3, d_key=7, d_value=5).eval(), torch.randn(2, 17, 24), keep


def _measured(layer, hidden, keep=None, **options):
    with record_heads(layer) as records:
        layer(hidden, keep)
    return measure_heads(records[0], **options)


def test_padding_on_either_side_and_batch_mates_do_not_change_a_text(padded):
    layer, hidden, keep = padded
    together = _measured(layer, hidden, keep)
    for text in range(2):
        alone = hidden[text, keep[text]][None]
        right = torch.cat([alone, torch.full((1, 5, 24), 1e6)], 1)
        kept = (torch.arange(right.shape[1]) < alone.shape[1])[None]
        for measured in (together[text], _measured(layer, right, kept)[0]):
            # Float64 from the same float32 inputs: only the order of sums differs.
            torch.testing.assert_close(measured, _measured(layer, alone)[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, None])
def test_ambiguity_and_slack_of_the_chosen_rows_are_those_of_the_slow_twins(padded, rows):
    layer, hidden, keep = padded
    with record_heads(layer) as records:
        layer(hidden, keep)
    (record,) = records
    measured = measure_heads(record, rows=rows)
    for text, kept in enumerate(keep):
        chosen = sample_rows(keep, rows, 0)[text, kept].nonzero()[:, 0]
        assert len(chosen) == (rows or kept.sum())
        for head in range(3):
            weights = record.weights[text, head][kept][:, kept].numpy()
            key = record.key[text, head][kept].numpy()
            transformed = (record.value[text, head] @ record.output_map[head])[kept].numpy()
            by_row = [slow_slack(weights[row], transformed, weights[row].argmax()) for row in chosen]
            widths = [upper.max() - lower[upper.argmax()] for lower, upper in by_row]
            ambiguities = [slow_ambiguity(weights[row], key, transformed) for row in chosen]
            found = dict(zip(MEASURES, measured[text, head].tolist(), strict=True))
            assert found["identifiability/slack"] == pytest.approx(np.mean(widths), abs=1e-8)  # a projection, squared
            assert found["identifiability/key_ambiguity"] == np.mean(ambiguities)


def test_the_tests_have_ambiguous_rows_and_slack(padded):
    measured = _measured(*padded)[0].mean(0)
    assert measured[MEASURES.index("identifiability/key_ambiguity")] == 2  # keys of 7, values of 5
    assert measured[MEASURES.index("identifiability/slack")] > 0.01


def test_rows_are_chosen_by_the_length_alone_and_the_first_token_is_among_them(padded):
    _, _, keep = padded
    chosen = sample_rows(keep, 4, 0)
    assert (chosen.sum(1) == 4).all()
    assert not (chosen & ~keep).any()
    assert chosen[keep.nonzero()[[0, 14]].unbind(1)].all()
    assert torch.equal(chosen[:, 3:][0], sample_rows(torch.ones(1, 14, dtype=torch.bool), 4, 0)[0])
    assert not torch.equal(chosen, sample_rows(keep, 4, 1))
    short = torch.tensor([[False, True, True], [False] * 3])
    assert torch.equal(sample_rows(short, 4, 0), short)


def test_heads_that_are_identifiable_have_neither_ambiguity_nor_slack(padded):
    layer, hidden, _ = padded
    measured = _measured(layer, hidden[:, :6])
    for name in ("identifiability/key_ambiguity", "identifiability/slack"):
        assert (measured[..., MEASURES.index(name)] == 0).all()


def test_a_key_that_is_not_finite_is_refused(padded):
    layer, hidden, keep = padded
    with torch.no_grad():
        layer.attention.key.bias[0] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        _measured(layer, hidden, keep)


def test_an_empty_metric_can_be_computed_and_reset_forgets(model, texts):
    metric = HeadMeasures()
    assert metric.compute() == {}
    _update(metric, model, texts)
    metric.reset()
    assert metric.compute() == {}
    assert metric.groups() == []
