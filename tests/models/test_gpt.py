import math

import pytest
import torch
from torch import nn

from pptoolkit.errors import ConfigError
from pptoolkit.models import GPTConfig, gpt_layers, next_token_loss

SMALL = GPTConfig(vocabulary=97, width=32, depth=3, heads=4, sequence=16)


def build(config, *, seed=0, dtype=None):
    return [layer.build(seed) for layer in gpt_layers(config, dtype=dtype)]


def tokens(config, samples=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(config.vocabulary, (samples, config.sequence + 1), generator=generator)
    return row[:, :-1], row[:, 1:]


def test_the_layers_are_embedding_blocks_and_head_by_name():
    assert [layer.name for layer in gpt_layers(SMALL)] == ["embed", "block00", "block01", "block02", "head"]


def test_one_tensor_of_batch_tokens_width_crosses_each_border_and_logits_come_out():
    value, shapes = tokens(SMALL)[0], []
    for module in build(SMALL):
        value = module(value)
        shapes.append(tuple(value.shape))
    assert shapes == [(4, 16, 32)] * 4 + [(4, 16, 97)]


@pytest.mark.parametrize("config", [SMALL, GPTConfig(vocabulary=4096, depth=2), GPTConfig(vocabulary=512, width=256, depth=12, heads=8)])
def test_the_first_loss_is_that_of_a_guess_among_all_tokens(config):
    inputs, targets = tokens(config)
    loss = next_token_loss(nn.Sequential(*build(config))(inputs), targets)
    assert loss.item() == pytest.approx(math.log(config.vocabulary), rel=0.03)


def test_the_variance_of_the_residual_stream_hardly_depends_on_the_depth():
    def growth(depth):
        config = GPTConfig(vocabulary=97, width=64, depth=depth, heads=4, sequence=16)
        embedding, *blocks, _ = build(config)
        start = embedding(tokens(config)[0])
        return (nn.Sequential(*blocks)(start) - start).std().item()

    assert growth(24) == pytest.approx(growth(2), rel=0.5)


def test_a_few_steps_on_one_batch_bring_the_loss_down():
    model = nn.Sequential(*build(SMALL))
    inputs, targets = tokens(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0


def test_every_parameter_gets_a_gradient():
    model = nn.Sequential(*build(SMALL))
    inputs, targets = tokens(SMALL)
    next_token_loss(model(inputs), targets).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_token_sees_nothing_that_comes_after_it():
    model = nn.Sequential(*build(SMALL))
    inputs, _ = tokens(SMALL)
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 1) % SMALL.vocabulary
    before, after = model(inputs), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])
    assert not torch.allclose(before[:, -1], after[:, -1])  # and all that comes before


@pytest.mark.parametrize("cut", range(1, 5))
def test_cutting_the_list_anywhere_changes_neither_outputs_nor_gradients(cut):
    inputs, targets = tokens(SMALL)
    whole = nn.Sequential(*build(SMALL, dtype=torch.float64))
    next_token_loss(whole(inputs), targets).backward()

    layers = gpt_layers(SMALL, dtype=torch.float64)
    last = nn.Sequential(*(layer.build(0) for layer in layers[cut:]))  # the later part is built first, as another process might
    first = nn.Sequential(*(layer.build(0) for layer in layers[:cut]))
    sent = first(inputs)
    received = sent.detach().requires_grad_()
    next_token_loss(last(received), targets).backward()
    sent.backward(received.grad)

    for expected, parameter in zip(whole.parameters(), [*first.parameters(), *last.parameters()], strict=True):
        assert torch.equal(expected, parameter)
        assert torch.allclose(expected.grad, parameter.grad, rtol=1e-12, atol=1e-15)


def test_float64_by_argument_and_by_default_agree_with_float32():
    inputs, _ = tokens(SMALL)
    by_argument = build(SMALL, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        by_default = build(SMALL)
    finally:
        torch.set_default_dtype(torch.float32)
    for modules in (by_argument, by_default):
        output = nn.Sequential(*modules)(inputs)
        assert output.dtype == torch.float64
    assert torch.equal(nn.Sequential(*by_argument)(inputs), nn.Sequential(*by_default)(inputs))
    single = nn.Sequential(*by_argument).to(torch.float32)
    expected = output.float()
    assert torch.allclose(single(inputs), expected, atol=1e-5)


def test_each_block_drops_in_training_by_the_generator_and_not_in_evaluation():
    config = GPTConfig(vocabulary=97, width=32, depth=1, heads=4, sequence=16, dropout=0.3)
    inputs, _ = tokens(config)
    embedding, block, _ = build(config)

    def run(module, value, seed):
        torch.manual_seed(seed)
        return module(value)

    value = embedding.eval()(inputs)
    embedding.train()
    for module, given in ((embedding, inputs), (block, value), (block.attention, value)):
        assert torch.equal(run(module, given, 1), run(module, given, 1))
        assert not torch.equal(run(module, given, 1), run(module, given, 2))
        module.eval()
        assert torch.equal(run(module, given, 1), run(module, given, 2))
        module.train()


def test_without_dropout_training_and_evaluation_agree():
    model = nn.Sequential(*build(SMALL))
    inputs, _ = tokens(SMALL)
    assert torch.equal(model.train()(inputs), model.eval()(inputs))


def test_a_shorter_sequence_gives_the_same_logits_as_the_beginning_of_a_longer_one():
    model = nn.Sequential(*build(SMALL, dtype=torch.float64))
    inputs, _ = tokens(SMALL)
    assert torch.allclose(model(inputs[:, :5]), model(inputs)[:, :5], rtol=1e-12, atol=1e-14)


def test_a_longer_sequence_than_the_model_reads_is_named():
    embedding, *_ = build(SMALL)
    with pytest.raises(ValueError, match=r"17 tokens a sample and the model reads at most 16; .*model\.sequence"):
        embedding(torch.zeros(2, 17, dtype=torch.int64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, r"model\.heads=3 does not divide model\.width=128"),
        ({"depth": 0}, r"model\.depth=0 is out of range"),
        ({"depth": 2.5}, r"model\.depth=2\.5 is out of range; use a whole number"),
        ({"vocabulary": -5}, r"model\.vocabulary=-5"),
        ({"dropout": 1.0}, r"model\.dropout=1\.0"),
    ],
)
def test_sizes_that_make_no_model_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        GPTConfig(**settings)


def test_the_loss_is_the_mean_over_all_tokens():
    logits, targets = torch.randn(2, 3, 7, dtype=torch.float64), torch.randint(7, (2, 3))
    by_hand = -sum(logits.log_softmax(-1)[b, t, targets[b, t]] for b in range(2) for t in range(3)) / 6
    assert next_token_loss(logits, targets).item() == pytest.approx(by_hand.item(), rel=1e-12)
