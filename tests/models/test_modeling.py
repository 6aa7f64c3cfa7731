import pytest
import torch
from asserting import assert_close, randomise
from identiformer.models import IdentiformerForSequenceClassification, IdentiformerModel, record_heads
from identiformer.models.identifiability import null_space

KERNELS = ["sdpa", "eager"]
TEXTS = [[7, 3, 11, 2, 19], [5, 23], [13, 1, 4, 9, 8, 17, 6]]


def batch(texts, width=None, side="right"):
    """input_ids and attention_mask, padded with token 0 to `width` (by default the longest)."""
    width = width or max(map(len, texts))
    ids, mask = torch.zeros(len(texts), width, dtype=torch.long), torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in enumerate(texts):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place] = torch.tensor(text)
        mask[row, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


def classifier(config, std=0.3):
    return randomise(IdentiformerForSequenceClassification(config), std).eval()


@pytest.fixture(params=["mean", "first"])
def pooling(request):
    return request.param


@pytest.fixture(params=KERNELS)
def kernel(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["pre-norm", "post-norm"])
def norm_first(request):
    return request.param


# One text, however it comes.

WAYS = {
    "in a batch": (TEXTS, None, "right"),
    "with more padding": (TEXTS, 13, "right"),
    "with padding on the left": (TEXTS, 13, "left"),
    "in another order": ([TEXTS[2], TEXTS[0], TEXTS[1]], None, "right"),
}


def measures(model, inputs):
    """Per text: logits; per layer the weights, ranks and nullities of kept tokens."""
    with torch.no_grad(), record_heads(model) as records:
        logits = model(**inputs).logits
    keep = inputs["attention_mask"].bool()
    texts = []
    for text, kept in enumerate(keep):
        per_layer = []
        for record in records:
            found = null_space(record.value[text], record.output_map, kept)
            per_layer.append((record.weights[text][:, kept][:, :, kept], found))
        texts.append((logits[text], per_layer))
    return texts


@pytest.mark.parametrize("way", WAYS)
def test_a_text_gives_the_same_however_it_comes(make_config, pooling, norm_first, way):
    model = classifier(make_config(pooling=pooling, norm_first=norm_first))
    texts, width, side = WAYS[way]
    for text, (logits, layers) in zip(texts, measures(model, batch(texts, width, side)), strict=True):
        ((alone_logits, alone_layers),) = measures(model, batch([text]))
        assert_close(logits, alone_logits, 1e-5)
        for (weights, found), (alone_weights, alone) in zip(layers, alone_layers, strict=True):
            assert_close(weights, alone_weights, 1e-5)
            assert torch.equal(torch.stack(found[:5]), torch.stack(alone[:5]))
            assert found.length.tolist() == [len(text)] * 3


@torch.no_grad()
def test_what_stands_at_padding_changes_nothing(make_config, kernel):
    model, inputs = classifier(make_config(attn_implementation=kernel)), batch(TEXTS)
    other = torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], 28)
    assert torch.equal(model(**inputs).logits, model(other, inputs["attention_mask"]).logits)


@torch.no_grad()
def test_a_missing_mask_is_derived_from_the_padding_token(make_config):
    inputs = batch(TEXTS)
    model = classifier(make_config())
    assert torch.equal(model(inputs["input_ids"]).logits, model(**inputs).logits)
    model = classifier(make_config(pad_token_id=28))
    other = torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], 28)
    assert torch.equal(model(other).logits, model(other, inputs["attention_mask"]).logits)


@torch.no_grad()
def test_without_a_padding_token_everything_takes_part(make_config):
    model, inputs = classifier(make_config(pad_token_id=None)), batch(TEXTS)
    everything = torch.ones_like(inputs["attention_mask"])
    assert torch.equal(model(inputs["input_ids"]).logits, model(inputs["input_ids"], everything).logits)


@torch.no_grad()
def test_permuting_tokens_permutes_outputs_without_positions(make_config, norm_first):
    model = randomise(IdentiformerModel(make_config(norm_first=norm_first))).eval()
    model.embeddings.position.weight.zero_()
    ids, order = torch.tensor([TEXTS[2]]), torch.randperm(7)
    straight, permuted = model(ids), model(ids[:, order])
    assert_close(permuted.last_hidden_state, straight.last_hidden_state[:, order], 1e-5)
    assert_close(permuted.pooler_output, straight.pooler_output, 1e-5)


@torch.no_grad()
def test_positions_count(make_config):
    model = randomise(IdentiformerModel(make_config())).eval()
    ids = torch.tensor([TEXTS[2]])
    assert not torch.allclose(model(ids.flip(1)).last_hidden_state, model(ids).last_hidden_state.flip(1), atol=1e-2)


# A text of nothing, and NaN.


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("only", [False, True], ids=["beside others", "alone"])
def test_a_row_of_padding_gives_finite_results_and_gradients(make_config, pooling, kernel, norm_first, training, only):
    config = make_config(pooling=pooling, attn_implementation=kernel, norm_first=norm_first)
    model = IdentiformerForSequenceClassification(config).train(training)
    inputs = batch([[]] if only else [*TEXTS, []], width=7)
    output = model(**inputs, labels=torch.arange(len(inputs["input_ids"])) % 2, output_hidden_states=True)
    assert output.logits.isfinite().all()
    assert all(state.isfinite().all() for state in output.hidden_states)
    output.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    assert model.classifier.weight.grad is not None


def test_a_row_of_padding_adds_nothing_to_the_gradients_of_the_layers(make_config, kernel):
    model = classifier(make_config(attn_implementation=kernel))
    gradients = []
    for inputs in (batch(TEXTS), batch([*TEXTS, []])):
        model.zero_grad()
        model(**inputs).logits[:3].square().sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert_close(gradients[1], gradients[0], 1e-5)


def test_nan_at_padding_reaches_neither_logits_nor_gradients(make_config, pooling, kernel):
    model, inputs = classifier(make_config(pooling=pooling, attn_implementation=kernel)), batch(TEXTS)
    words = model.get_input_embeddings()(inputs["input_ids"]).detach()
    padding = inputs["attention_mask"][..., None] == 0
    results = []
    for content in (0.0, torch.nan):
        model.zero_grad()
        embeds = words.masked_fill(padding, content).requires_grad_()
        logits = model(inputs_embeds=embeds, attention_mask=inputs["attention_mask"]).logits
        logits.square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results.append([logits.detach(), embeds.grad, *gradients])
    for with_nan, without in zip(results[1], results[0], strict=True):
        assert torch.equal(with_nan, without)


# What is returned.


@torch.no_grad()
def test_kernels_give_the_same_logits(make_config, norm_first):
    sdpa = classifier(make_config(attn_implementation="sdpa", norm_first=norm_first))
    eager = IdentiformerForSequenceClassification(make_config(attn_implementation="eager", norm_first=norm_first))
    eager.load_state_dict(sdpa.state_dict())
    assert sdpa.config._attn_implementation != eager.config._attn_implementation
    assert_close(eager.eval()(**batch(TEXTS)).logits, sdpa(**batch(TEXTS)).logits, 1e-5)


@pytest.mark.parametrize("by", ["call", "config"])
@torch.no_grad()
def test_attentions_are_returned_by_call_and_by_config_on_every_kernel(make_config, kernel, by):
    model = classifier(make_config(attn_implementation=kernel, output_attentions=by == "config"))
    options = {"output_attentions": True} if by == "call" else {}
    with record_heads(model) as records:
        attentions = model(**batch(TEXTS), **options).attentions
    assert len(attentions) == len(records) == 2
    for mine, record in zip(attentions, records, strict=True):
        assert mine.shape == (3, 3, 7, 7)
        kept = batch(TEXTS)["attention_mask"].bool()[:, None, :].expand(3, 3, 7)
        assert_close(mine[kept], record.weights[kept], 1e-6)
        assert_close(mine[kept].sum(-1), torch.ones(int(kept.sum())), 1e-6)


@torch.no_grad()
def test_a_call_overrides_the_config(make_config):
    model = classifier(make_config(output_attentions=True, output_hidden_states=True))
    output = model(**batch(TEXTS), output_attentions=False, output_hidden_states=False)
    assert output.attentions is None
    assert output.hidden_states is None


@torch.no_grad()
def test_attentions_are_not_returned_unasked(make_config, kernel):
    assert classifier(make_config(attn_implementation=kernel))(**batch(TEXTS)).attentions is None


@torch.no_grad()
def test_asking_for_attentions_does_not_change_the_logits(make_config):
    model = classifier(make_config())
    assert_close(model(**batch(TEXTS), output_attentions=True).logits, model(**batch(TEXTS)).logits, 1e-5)


@pytest.mark.parametrize("by", ["call", "config"])
@torch.no_grad()
def test_hidden_states_run_from_the_embeddings_to_the_last(make_config, norm_first, by):
    model = randomise(IdentiformerModel(make_config(norm_first=norm_first, output_hidden_states=by == "config"))).eval()
    output = model(**batch(TEXTS), **({"output_hidden_states": True} if by == "call" else {}))
    first, middle, last = output.hidden_states
    keep = batch(TEXTS)["attention_mask"].bool()
    positions = torch.arange(7)
    expected = model.embeddings.word(batch(TEXTS)["input_ids"]) + model.embeddings.position(positions)
    assert_close(first[keep], expected[keep], 1e-6)
    assert_close(middle, model.layers[0](first, keep), 1e-6)
    assert_close(last, model.norm(model.layers[1](middle, keep)), 1e-6)
    assert torch.equal(last, output.last_hidden_state)


@torch.no_grad()
def test_pooling_is_over_kept_tokens(make_config, pooling):
    model = randomise(IdentiformerModel(make_config(pooling=pooling))).eval()
    output = model(**batch(TEXTS, width=9, side="left"))
    for row, text in enumerate(TEXTS):
        kept = output.last_hidden_state[row, 9 - len(text) :]
        assert_close(output.pooler_output[row], kept.mean(0) if pooling == "mean" else kept[0], 1e-6)


@pytest.mark.parametrize("model_class", [IdentiformerModel, IdentiformerForSequenceClassification])
@torch.no_grad()
def test_a_tuple_holds_what_the_output_holds(make_config, model_class):
    model = randomise(model_class(make_config())).eval()
    options = {"output_attentions": True, "output_hidden_states": True}
    named, plain = model(**batch(TEXTS), **options), model(**batch(TEXTS), **options, return_dict=False)
    assert type(plain) is tuple
    for mine, other in zip(plain, named.to_tuple(), strict=True):
        mine, other = (part if isinstance(part, tuple) else (part,) for part in (mine, other))
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


@torch.no_grad()
def test_loss_is_the_cross_entropy_of_the_logits(make_config):
    model = classifier(make_config(num_labels=3))
    output = model(**batch(TEXTS), labels=torch.tensor([2, 0, 1]))
    log_shares = output.logits.double().log_softmax(-1)
    expected = -(log_shares[0, 2] + log_shares[1, 0] + log_shares[2, 1]) / 3
    assert_close(output.loss, expected, 1e-6)
    assert output.logits.shape == (3, 3)


# Users' mistakes.


@pytest.mark.parametrize("padded", [False, True])
def test_too_long_a_text_is_named_with_the_limit(make_config, padded):
    texts = [[1] * 17, [1] * (3 if padded else 17)]
    with pytest.raises(ValueError, match="A text has 17 tokens, but max_length is 16"):
        classifier(make_config())(**batch(texts))


@torch.no_grad()
def test_padding_past_the_limit_does_no_harm(make_config):
    model = classifier(make_config())
    for side in ("left", "right"):
        assert_close(model(**batch(TEXTS, 31, side)).logits, model(**batch(TEXTS)).logits, 1e-5)


def test_neither_or_both_inputs_are_refused(make_config):
    model, inputs = classifier(make_config()), batch(TEXTS)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model(inputs["input_ids"], inputs_embeds=torch.zeros(3, 7, 12))


def test_an_unknown_activation_is_named(make_config):
    with pytest.raises(ValueError, match=r"'gleu'.*gelu"):
        IdentiformerModel(make_config(activation="gleu"))


def test_value_heads_that_do_not_divide_are_named(make_config):
    with pytest.raises(ValueError, match="num_value_heads is 2: it must divide num_heads, 3"):
        IdentiformerModel(make_config(num_value_heads=2))


# Initialisation and dropout.


def test_two_layers_do_not_share_initial_weights(make_config):
    one, other = IdentiformerModel(make_config()).layers
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        if mine.ndim == 2:
            assert not torch.equal(mine, theirs), name


def test_the_same_seed_gives_the_same_weights(make_config):
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(IdentiformerForSequenceClassification(make_config()))
    for mine, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(mine, other)


def test_embeddings_start_with_the_variances_of_the_design(make_config):
    embeddings = IdentiformerModel(make_config(vocab_size=2000, max_length=2000)).embeddings
    assert embeddings.word.weight.std().item() == pytest.approx(12**-0.5, rel=0.05)  # 24,000 draws
    assert embeddings.position.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_model_starts_its_attention_as_the_layer_does(make_config):
    config = make_config(d_model=126, vocab_size=29)
    expected = {"concat": 1, "sum": 1 / 3, "mean": 1}[config.merge_heads] / 126
    for layer in IdentiformerModel(config).layers:
        assert layer.attention.value.weight.var().item() == pytest.approx(expected, rel=0.2)  # 1,512 draws or more
        assert (layer.attention.value.bias == 0).all()
        assert (layer.norm1.weight == 1).all()


@torch.no_grad()
def test_embedding_dropout_drops_in_training_alone(make_config, kernel):
    config = make_config(dropout=0.0, embedding_dropout=0.4, attn_implementation=kernel)
    model = randomise(IdentiformerModel(config))
    inputs = batch(TEXTS)

    def states():
        return model(**inputs).last_hidden_state

    assert not torch.allclose(states(), states())
    model.eval()
    assert torch.equal(states(), states())
    in_eval = states()
    model.train().embeddings.dropout.p = 0.0
    assert torch.equal(states(), in_eval)


@torch.no_grad()
def test_dropout_before_the_classifier_drops_in_training_alone(make_config):
    model = randomise(IdentiformerForSequenceClassification(make_config(dropout=0.0, embedding_dropout=0.4))).train()
    model.encoder.embeddings.dropout.p = 0.0
    assert not torch.allclose(model(**batch(TEXTS)).logits, model(**batch(TEXTS)).logits)
    model.eval()
    assert torch.equal(model(**batch(TEXTS)).logits, model(**batch(TEXTS)).logits)


def test_configured_dropout_reaches_every_part(make_config):
    model = IdentiformerForSequenceClassification(make_config(dropout=0.3, embedding_dropout=0.4))
    assert model.dropout.p == model.encoder.embeddings.dropout.p == 0.4
    for layer in model.encoder.layers:
        assert layer.attention.dropout == layer.dropout.p == layer.feedforward.dropout.p == 0.3


def test_every_parameter_learns(make_config, norm_first):
    model = IdentiformerForSequenceClassification(make_config(norm_first=norm_first)).eval()
    model(**batch(TEXTS), labels=torch.tensor([0, 1, 1])).loss.backward()
    still = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert still == []


def test_word_embeddings_can_be_replaced(make_config):
    model = IdentiformerModel(make_config())
    model.resize_token_embeddings(31)
    assert model.get_input_embeddings().weight.shape == (31, 12)
    assert model(torch.tensor([[30, 29]])).last_hidden_state.shape == (1, 2, 12)
