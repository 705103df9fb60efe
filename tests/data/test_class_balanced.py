"""Batches of P classes × K images: balance, disjoint ranks, resuming, small classes; the sampler in a DataLoader."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from hypersphere.data import ArrayDataset, ClassBalancedSampler, batches, num_batches

SIZES = {7: 40, -3: 9, 100: 3, 5: 1, 20: 25, 21: 22}


def long_tailed():
    labels = torch.cat([torch.full((n,), label) for label, n in SIZES.items()])
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]


def test_classes_and_images_of_a_batch():
    """All classes equally often; of a class all images before one comes again."""
    labels = long_tailed()
    sampler = ClassBalancedSampler(labels, 12, 4, seed=3)
    assert len(sampler) == len(labels) // 12 == 8
    seen, taken = Counter(), {label: Counter() for label in SIZES}
    for batch in sampler:
        rows = torch.tensor(batch).view(3, 4)
        of = labels[rows]
        assert (of == of[:, :1]).all()
        assert len(set(of[:, 0].tolist())) == 3
        seen.update(of[:, 0].tolist())
        for label, images in zip(of[:, 0].tolist(), rows.tolist(), strict=True):
            assert len(set(images)) == min(4, SIZES[label])
            assert max(Counter(images).values()) == -(-4 // SIZES[label])
            taken[label].update(images)
            counts = [taken[label][i] for i in (labels == label).nonzero().flatten().tolist()]
            assert max(counts) - min(counts) <= 1
    assert set(seen.values()) == {4}  # 8 batches of 3 of 6 classes


def test_epochs_and_seeds_differ_and_repeat():
    labels = long_tailed()

    def epoch(seed, number):
        sampler = ClassBalancedSampler(labels.tolist(), 4, 2, seed=seed)
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(0, 5) == epoch(0, 5)
    assert len({str(epoch(seed, number)) for seed in (0, 1) for number in (0, 1)}) == 4


def test_every_image_and_place_is_as_likely():
    """Over 3,000 epochs: 5 classes, 2 in a batch, 2 of 3 images; 4 standard deviations."""
    labels, hits, pairs = torch.arange(15) % 5, torch.zeros(15), Counter()
    sampler = ClassBalancedSampler(labels, 4, 2)
    for epoch in range(3000):
        sampler.set_epoch(epoch)
        batch = next(iter(sampler))
        hits[batch] += 1
        pairs[tuple(labels[batch[::2]].tolist())] += 1
    expected = 3000 * 4 / 15
    assert (hits - expected).abs().max() < 4 * (expected * 11 / 15) ** 0.5
    assert len(pairs) == 20
    assert max(abs(n - 150) for n in pairs.values()) < 4 * 150**0.5


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_batch_of_one_process(world_size):
    labels = long_tailed()
    whole = list(ClassBalancedSampler(labels, 12, 2))
    parts = [
        list(ClassBalancedSampler(labels, 12 // world_size, 2, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [[*chain(*together)] for together in zip(*parts, strict=True)] == whole
    for together in zip(*parts, strict=True):
        classes = [set(labels[batch].tolist()) for batch in together]
        assert len(set().union(*classes)) == 6


def test_resuming_by_state_in_a_dataloader():
    labels = long_tailed()
    data = TensorDataset(torch.arange(len(labels)), labels)
    sampler = ClassBalancedSampler(labels, 6, 3, seed=1)
    loader = DataLoader(data, batch_sampler=sampler)
    assert len(loader) == 16
    sampler.set_epoch(2)
    whole = [rows.tolist() for rows, _ in loader]
    iterator = iter(loader)
    first = [next(iterator)[0].tolist() for _ in range(5)]
    state = sampler.state_dict()
    other = ClassBalancedSampler(labels.numpy(), 6, 3, seed=1)
    other.load_state_dict(state)
    assert state == {"epoch": 2, "start": 5}
    assert first + [rows.tolist() for rows, _ in DataLoader(data, batch_sampler=other)] == whole
    assert other.state_dict() == {"epoch": 2, "start": 0}
    assert [rows.tolist() for rows, _ in DataLoader(data, batch_sampler=other)] == whole


def images():
    labels = torch.arange(50) % 10 % 7
    inputs = torch.randint(256, (50, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ArrayDataset(inputs, labels, [str(i) for i in range(7)])


def equal(some, others):
    some, others = list(some), list(others)
    return len(some) == len(others) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(some, others, strict=True)
    )


def test_batches_are_those_of_the_sampler():
    data = images()
    numbered = ArrayDataset(torch.arange(50), data.labels, data.classes)
    options = {"seed": 4, "epoch": 3, "images_per_class": 4}
    got = [x.tolist() for x, _ in batches(numbered, 12, **options)]
    sampler = ClassBalancedSampler(data.labels, 12, 4, seed=4)
    sampler.set_epoch(3)
    assert got == list(sampler)
    assert len(got) == num_batches(data, 12, images_per_class=4) == 4
    whole = list(batches(data, 12, **options, augment="cifar.mhe"))
    assert equal(whole[2:], batches(data, 12, **options, augment="cifar.mhe", start=2))
    assert equal(whole, batches(data, 12, **options, augment="cifar.mhe", workers=2))
    parts = [list(batches(data, 4, **options, augment="cifar.mhe", rank=r, world_size=3)) for r in range(3)]
    joined = [tuple(torch.cat(x) for x in zip(*pairs, strict=True)) for pairs in zip(*parts, strict=True)]
    assert equal(whole, joined)


def test_a_repeated_image_is_augmented_anew():
    labels = torch.tensor([0, 1, 1, 1, 1])
    data = ArrayDataset(images().inputs[:5], labels, ["few", "many"])
    ((x, y),) = batches(data, 8, images_per_class=4, augment="cifar.mhe", seed=1)
    assert len(torch.unique(x[y == 0], dim=0)) == 4
    ((plain, y_plain),) = batches(data, 8, images_per_class=4)
    assert len(torch.unique(plain[y_plain == 0], dim=0)) == 1
    # by sample, without .inputs, too
    listed = TensorDataset(data.inputs, labels)
    listed.labels = labels
    assert equal([(x, y)], batches(listed, 8, images_per_class=4, augment="cifar.mhe", seed=1))


def test_fewer_samples_than_a_batch():
    assert len(ClassBalancedSampler(torch.arange(3), 6, 2)) == 1
    assert sorted(next(iter(ClassBalancedSampler(torch.arange(3), 6, 2)))) == [0, 0, 1, 1, 2, 2]
    assert next(iter(ClassBalancedSampler(np.zeros(5, np.int8), 3, 3))) != [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda y: ClassBalancedSampler(y, 6, 4), ValueError, "batch_size must be a multiple of images_per_class = 4"),
        (lambda y: ClassBalancedSampler(y, 14, 2), ValueError, "must be <= 6, the number of classes, got 7"),
        (
            lambda y: ClassBalancedSampler(y, 8, 2, world_size=2),
            ValueError,
            "must be <= 6, the number of classes, got 8",
        ),
        (lambda y: ClassBalancedSampler(y, 4, 2, rank=1), ValueError, "rank must be < world_size = 1, got 1"),
        (lambda y: ClassBalancedSampler(y, 4, 0), ValueError, "images_per_class must be >= 1, got 0"),
        (lambda y: ClassBalancedSampler(y, 4, 2.0), TypeError, "images_per_class must be an int"),
        (lambda y: ClassBalancedSampler(y.double(), 4, 2), ValueError, r"labels must be integers \(N,\)"),
        (lambda y: ClassBalancedSampler(y[:0], 4, 2), ValueError, r"got \(0,\) of int64"),
        (lambda y: ClassBalancedSampler(y, 4, 2).set_epoch(0, 26), ValueError, "start must be <= 25, the number of"),
        (lambda y: ClassBalancedSampler(y, 4, 2).set_epoch(-1), ValueError, "epoch must be >= 0"),
        (lambda y: batches(images(), 4, images_per_class=3), ValueError, "multiple of images_per_class = 3, got 4"),
        (lambda y: batches(images(), 4, images_per_class=2, shuffle=False), ValueError, "shuffle must be True"),
        (lambda y: batches(images(), 4, images_per_class=2, start=13), ValueError, "start must be <= 12"),
        (lambda y: batches(TensorDataset(y), 4, images_per_class=2), TypeError, "dataset must have .labels"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(long_tailed())
