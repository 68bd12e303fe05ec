import numpy as np
import pytest
import torch

from pptoolkit.data import TokenDataset, batches, load_tokens
from pptoolkit.errors import DataError


def row(count):
    return np.arange(count, dtype=np.uint16)


def test_the_target_is_the_input_one_token_later():
    inputs, targets = TokenDataset(row(10), 3)[1]
    assert inputs.tolist() == [3, 4, 5]
    assert targets.tolist() == [4, 5, 6]
    assert inputs.dtype == targets.dtype == torch.int64


@pytest.mark.parametrize(("tokens", "samples"), [(4, 1), (6, 1), (7, 2), (9, 2), (10, 3)])
def test_every_sample_has_all_its_targets(tokens, samples):
    dataset = TokenDataset(row(tokens), 3)
    assert len(dataset) == samples
    assert [targets.tolist()[-1] for _, targets in dataset] == [3 * (i + 1) for i in range(samples)]


def test_a_batch_is_its_samples_stacked():
    dataset = TokenDataset(row(50), 4)
    inputs, targets = dataset.batch(np.array([7, 0, 7]))
    assert torch.equal(inputs, torch.stack([dataset[i][0] for i in (7, 0, 7)]))
    assert torch.equal(targets, torch.stack([dataset[i][1] for i in (7, 0, 7)]))
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_changing_a_batch_leaves_the_tokens_alone():
    dataset = TokenDataset(np.arange(20, dtype=np.int64), 4)
    inputs, targets = dataset.batch([0])
    inputs.zero_()
    targets.zero_()
    assert dataset.batch([0])[0].tolist() == [[0, 1, 2, 3]]


def test_indices_out_of_range_are_refused_and_negative_ones_count_from_the_end():
    dataset = TokenDataset(row(10), 3)
    assert dataset[-1][0].tolist() == dataset[2][0].tolist()
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"sample {index} is out of range"):
            dataset[index]
    with pytest.raises(IndexError, match="samples 0 to 3 are out of range"):
        dataset.batch([0, 3])


def test_it_serves_a_torch_data_loader():
    loader = torch.utils.data.DataLoader(TokenDataset(row(13), 3), batch_size=2)
    assert [tuple(inputs.shape) for inputs, _ in loader] == [(2, 3), (2, 3)]


def test_too_few_tokens_for_one_sample_names_source_found_and_needed():
    with pytest.raises(
        DataError, match=r"my texts has 3 tokens, and one sample of sequence=3 needs 4; use a shorter sequence, or set data\.path"
    ):
        TokenDataset(row(3), 3, source="my texts")


def test_a_batch_larger_than_the_corpus_names_path_found_and_needed(tmp_path):
    (tmp_path / "a.txt").write_text("so little text")
    corpus = load_tokens(tmp_path / "a.txt", vocabulary=257, cache=tmp_path / "cache")
    dataset = TokenDataset(corpus.tokens, 4, source=corpus.source)
    dataset.require(3)
    with pytest.raises(
        DataError, match="has 15 tokens, which make 3 samples of sequence=4; batch_size=8 needs 33 tokens; use a batch_size of at most 3"
    ) as caught:
        dataset.require(8)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(DataError, match="batch_size=8 is larger than"):
        batches(len(dataset), 8, seed=0, source=dataset.source)


def test_no_target_of_the_training_part_is_in_the_validation_part():
    training, validation = TokenDataset(row(101), 4).split(0.2)
    assert (len(training), len(validation)) == (19, 5)
    seen = {int(token) for inputs, targets in training for token in (*inputs, *targets)}
    held = {int(token) for inputs, targets in validation for token in (*inputs, *targets)}
    assert not seen & held


@pytest.mark.parametrize("ratio", [0.0, 1.0, -0.1, 1.5])
def test_a_ratio_outside_zero_to_one_is_refused(ratio):
    with pytest.raises(DataError, match="is out of range; use a share between 0 and 1"):
        TokenDataset(row(101), 4).split(ratio)


@pytest.mark.parametrize("ratio", [0.001, 0.999])
def test_a_ratio_that_leaves_one_side_empty_is_refused(ratio):
    with pytest.raises(DataError, match="leaves one side without a sample"):
        TokenDataset(row(101), 4).split(ratio)
