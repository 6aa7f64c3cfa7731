import gc
import itertools
import json
import warnings
import weakref

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models import (
    IdentiformerConfig,
    IdentiformerForSequenceClassification,
    hidden_token_attribution,
    standard_layer,
)
from identiformer.models.identifiability import context_profile
from identiformer.train import IdentifiabilityMonitor, MonitorWarning
from identiformer.train.callbacks import NEIGHBOURS, spread
from torch import nn
from torch.utils.data import DataLoader


class Anybody(L.LightningModule):
    """A module that knows nothing of the monitor: no row numbers, tuples for batches, a layer of ours inside."""

    def __init__(self, attention: nn.Module | None = None):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.layer = standard_layer(12, 3, norm_first=True) if attention is None else attention
        self.head = nn.Linear(12, 2)
        self.seen = []

    def forward(self, ids):
        return self.head(self.layer(self.embed(ids)).mean(1))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        hidden = self.embed(batch[0])
        self.seen.append(weakref.ref(hidden))
        self.head(self.layer(hidden).mean(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _loader(rows=22, length=9):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (rows, length), generator=generator)
    return DataLoader(list(zip(ids, ids[:, 0] % 2, strict=True)), batch_size=4)


def _trainer(monitor, folder, **options):
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False} | options
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(callbacks=[monitor], default_root_dir=folder, **options, **quiet)


def test_it_measures_in_anybodys_module(tmp_path):
    monitor = IdentifiabilityMonitor(texts=None, fit_texts=None, folder=str(tmp_path))
    trainer = _trainer(monitor, tmp_path)
    trainer.fit(Anybody(), _loader(), _loader())
    logged = trainer.logged_metrics
    assert logged["val/identifiability/nullity"] == 5  # 9 tokens, values of 4
    assert logged["val/layer_0/identifiability/simplex_nullity"] == 4
    assert logged["val/identifiability/identifiable"] == 0
    assert logged["val/identifiability/key_ambiguity"] == 0  # keys of 4, values of 4
    assert 0 < logged["val/layer_0/identifiability/slack"] < 1
    lines = [json.loads(line) for line in (tmp_path / "identifiability.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["head"], line["texts"]) for line in lines] == [
        (epoch, head, 22) for epoch in (0, 1) for head in range(3)
    ]
    assert {(line["length_from"], line["length_to"]) for line in lines} == {(9, 16)}


def test_a_fixed_sample_is_measured(tmp_path):
    monitor, samples = IdentifiabilityMonitor(texts=7, seed=3), []
    trainer = _trainer(monitor, tmp_path)
    update = monitor.measures.update
    monitor.measures.update = lambda layer, lengths, measures: (
        samples.append(measures),
        update(layer, lengths, measures),
    )
    module = Anybody()
    trainer.validate(module, _loader(), verbose=False)
    first = torch.cat(samples)
    samples.clear()
    trainer.validate(module, _loader(), verbose=False)
    assert len(first) == 7
    assert torch.equal(torch.cat(samples), first)


@pytest.mark.parametrize(
    ("texts", "fit_texts", "fitting", "alone"),
    [(None, 6, 6, 22), (4, 6, 4, 4), (None, None, 22, 22), (9, 0, 0, 9), (40, 30, 22, 22)],
)
def test_fewer_texts_are_measured_while_fitting(texts, fit_texts, fitting, alone, tmp_path):
    monitor = IdentifiabilityMonitor(texts=texts, fit_texts=fit_texts)
    trainer, module = _trainer(monitor, tmp_path, max_epochs=1), Anybody()
    heads = 3
    trainer.fit(module, _loader(), _loader())
    assert sum(map(len, monitor.measures.rows)) == heads * fitting
    trainer.validate(module, _loader(), verbose=False)
    assert sum(map(len, monitor.measures.rows)) == heads * alone


@given(number=st.integers(1, 500), share=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 9))
def test_the_sample_while_fitting_spreads_over_the_loader(number, share, seed):
    wanted = int(share * number)
    chosen = spread(number, wanted, torch.Generator().manual_seed(seed)).tolist()
    assert len(set(chosen)) == wanted
    assert chosen == sorted(chosen)
    edges = [-1, *chosen, number] if chosen else []
    longest = NEIGHBOURS * number / max(wanted, 1) + 1  # from one run's start to the next one's, and rounding
    assert all(after - before <= longest + 1 for before, after in itertools.pairwise(edges))


def test_slack_is_measured_in_as_many_rows_as_it_is_told(tmp_path):
    slacks = []
    for rows in (1, None):
        torch.manual_seed(0)
        trainer = _trainer(IdentifiabilityMonitor(texts=None, rows=rows), tmp_path)
        trainer.validate(Anybody(), _loader(), verbose=False)
        slacks.append(trainer.logged_metrics["val/identifiability/slack"])
    assert slacks[0] != slacks[1]
    with pytest.raises(ValueError, match="rows is 0"):
        IdentifiabilityMonitor(rows=0)


def test_no_tensor_of_a_batch_outlives_it(tmp_path):
    module = Anybody()
    alive = []

    class Watch(L.Callback):
        def on_validation_batch_start(self, *_):
            gc.collect()
            alive.append(sum(reference() is not None for reference in module.seen))

    monitor = IdentifiabilityMonitor(texts=None)
    trainer = _trainer(monitor, tmp_path)
    trainer.callbacks.append(Watch())
    trainer.validate(module, _loader(), verbose=False)
    assert alive == [0] * 6


def test_the_model_is_left_as_it_was(tmp_path):
    module = Anybody()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    _trainer(IdentifiabilityMonitor(), tmp_path).validate(module, _loader(), verbose=False)
    assert not module.layer.attention._forward_pre_hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_training_is_the_same_with_and_without(tmp_path):
    weights = []
    for monitor in (IdentifiabilityMonitor(), L.Callback()):
        L.seed_everything(0, verbose=False)
        module = Anybody()
        _trainer(monitor, tmp_path).fit(module, _loader(), _loader())
        weights.append(module.head.weight)
    assert torch.equal(*weights)


@pytest.mark.filterwarnings("default::identiformer.train.errors.MonitorWarning")
def test_a_module_without_known_attention_trains_and_warns_once(tmp_path):
    trainer = _trainer(IdentifiabilityMonitor(), tmp_path)
    with pytest.warns(MonitorWarning, match="no attention module that can be read") as caught:
        trainer.fit(Anybody(nn.Identity()), _loader(), _loader())
    assert trainer.current_epoch == 2
    assert sum(issubclass(warning.category, MonitorWarning) for warning in caught) == 1


@pytest.mark.filterwarnings("default::identiformer.train.errors.MonitorWarning")
def test_texts_that_cannot_be_measured_are_counted_and_the_others_measured(tmp_path):
    module = Anybody()
    with torch.no_grad():
        module.embed.weight[19] = torch.inf  # one token breaks the texts that hold it
    loader = _loader()
    broken = sum(bool((ids == 19).any()) for ids, _ in loader.dataset)
    assert 0 < broken < 22
    trainer = _trainer(IdentifiabilityMonitor(texts=None), tmp_path)
    with pytest.warns(MonitorWarning, match=rf"^{broken} \(text, layer\) pairs"):
        trainer.validate(module, loader, verbose=False)
    assert trainer.logged_metrics["val/identifiability/nullity"] == 5


def test_measuring_in_half_precision_gives_the_ranks_of_full_precision(tmp_path):
    nullities = []
    for precision in ("32-true", "bf16-mixed"):
        torch.manual_seed(0)
        trainer = _trainer(IdentifiabilityMonitor(texts=None), tmp_path, precision=precision)
        trainer.validate(Anybody(), _loader(), verbose=False)
        nullities.append(trainer.logged_metrics["val/identifiability/nullity"])
    assert nullities[0] == nullities[1] == 5


def test_texts_are_measured_without_their_padding(tmp_path):
    class Padded(Anybody):
        def __init__(self):
            super().__init__(nn.Identity())
            config = IdentiformerConfig(vocab_size=20, d_model=12, num_heads=3, max_length=40)
            self.model = IdentiformerForSequenceClassification(config)

        def validation_step(self, batch, _):
            ids = nn.functional.pad(batch[0].clamp(min=1), (0, 30))
            self.model(ids, attention_mask=(ids != 0).long())

    trainer = _trainer(IdentifiabilityMonitor(texts=None), tmp_path)
    with warnings.catch_warnings():
        trainer.validate(Padded(), _loader(), verbose=False)
    assert trainer.logged_metrics["val/identifiability/nullity"] == 5  # not 35


# Attribution.


class OfTexts(Anybody):
    """A module whose batches and model are as ours are."""

    def __init__(self, **options):
        super().__init__(nn.Identity())
        config = IdentiformerConfig(vocab_size=20, d_model=12, num_heads=3, num_layers=2, max_length=16, **options)
        self.model = IdentiformerForSequenceClassification(config)

    def training_step(self, batch, _):
        return self.model(batch["input_ids"], batch["attention_mask"], labels=batch["labels"]).loss

    def validation_step(self, batch, _):
        self.model(batch["input_ids"], batch["attention_mask"])


def _texts(rows=11):
    ids = torch.randint(1, 20, (rows, 9), generator=torch.Generator().manual_seed(0))
    ids[:, 6:] *= torch.arange(rows)[:, None] % 2  # padding
    keep = (ids != 0).long()
    texts = [{"input_ids": ids[row], "attention_mask": keep[row], "labels": row % 2} for row in range(rows)]
    return DataLoader(texts, batch_size=4)


def test_own_shares_are_logged_when_asked_for(tmp_path):
    trainer, module = _trainer(IdentifiabilityMonitor(attribution=True), tmp_path), OfTexts()
    trainer.validate(module, _texts(), verbose=False)
    logged = {name: value for name, value in trainer.logged_metrics.items() if "attribution" in name}
    shares = [[], []]
    for batch in _texts():
        taken = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found = hidden_token_attribution(module.model, taken, 16)
        for layer, contributions in enumerate(found.contributions):
            own = context_profile(contributions, taken["attention_mask"].bool()).own_share
            shares[layer] += own.tolist()
    shares = [torch.tensor(layer[:8]) for layer in shares]  # 8 of 11 texts
    expected = [shares[0].nanmean(), shares[1].nanmean()]
    assert logged["val/layer_0/attribution/own_share"] == pytest.approx(expected[0].item(), abs=1e-6)
    assert logged["val/layer_1/attribution/own_share"] == pytest.approx(expected[1].item(), abs=1e-6)
    assert logged["val/attribution/own_share"] == pytest.approx(sum(expected).item() / 2, abs=1e-6)
    assert len(logged) == 3
    trainer.validate(module, _texts(), verbose=False)
    again = {name: value for name, value in trainer.logged_metrics.items() if "attribution" in name}
    assert again == logged


def test_own_shares_are_not_measured_unasked(tmp_path):
    trainer = _trainer(IdentifiabilityMonitor(), tmp_path)
    trainer.validate(OfTexts(), _texts(), verbose=False)
    assert not [name for name in trainer.logged_metrics if "attribution" in name]


def test_training_is_the_same_with_and_without_attribution(tmp_path):
    weights = []
    for attribution in (False, True):
        L.seed_everything(0, verbose=False)
        module = OfTexts(dropout=0.3)
        _trainer(IdentifiabilityMonitor(attribution=attribution), tmp_path).fit(module, _texts(), _texts())
        weights.append(module.model.classifier.weight)
        assert module.training
    assert torch.equal(*weights)


@pytest.mark.filterwarnings("default::identiformer.train.errors.MonitorWarning")
def test_batches_that_cannot_be_attributed_are_warned_of_and_everything_else_is_measured(tmp_path):
    monitor = IdentifiabilityMonitor(attribution=True)
    trainer = _trainer(monitor, tmp_path)
    with pytest.warns(MonitorWarning, match="TypeError"):
        trainer.validate(Anybody(), _loader(), verbose=False)
    assert [group.texts for group in monitor.measures.groups()] == [22] * 3
