import numpy as np
import pytest
import torch
from identiformer.models import IdentiformerConfig, IdentiformerModel, record_heads
from identiformer.models.identifiability import agreement, effective_attention, null_space
from identiformer.train.metrics import MEASURES, HeadMeasures, measure_heads

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
            columns = [space.identifiable, space.nullity, space.simplex_nullity, space.margin]
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


def test_an_empty_metric_can_be_computed_and_reset_forgets(model, texts):
    metric = HeadMeasures()
    assert metric.compute() == {}
    _update(metric, model, texts)
    metric.reset()
    assert metric.compute() == {}
    assert metric.groups() == []
