"""Batches, splits and episodes: the same bytes from every position and in every number of processes."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hypersphere.data import batches, episode, fold, holdout, imbalance, num_batches
from hypersphere.data._dataset import ArrayDataset, LazyDataset
from hypersphere.data._random import SampleGenerator
from hypersphere.data.augment import AUGMENTATIONS, Normalize

N = 103


class Plain(Dataset):
    """No more than what is asked for: len(), ds[i] and labels."""

    def __init__(self, inputs, labels, classes=None):
        self.samples, self.labels = inputs, labels
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.samples[i], int(self.labels[i])


def names(count):
    return [f"class {c}" for c in range(count)]


def array(n=N, classes=10):
    generator = torch.Generator().manual_seed(n)
    images = torch.randint(256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ArrayDataset(images, torch.arange(n) % classes, names(classes))


def decode(path):
    """An image of random size, as in a folder."""
    generator = torch.Generator().manual_seed(int(path))
    height, width = (int(torch.randint(20, 60, (), generator=generator)) for _ in range(2))
    return torch.randint(256, (3, height, width), generator=generator, dtype=torch.uint8)


def lazy(n=13):
    return LazyDataset([str(i) for i in range(n)], torch.arange(n) % 3, names(3), decode)


def numbered(n, classes=1):
    """The input of a sample is its index."""
    return ArrayDataset(torch.arange(n), torch.arange(n) % classes, names(classes))


def balanced(classes, per_class):
    """Labels in random order."""
    labels = torch.arange(classes).repeat(per_class)[torch.randperm(classes * per_class)]
    return ArrayDataset(torch.arange(len(labels)), labels, names(classes))


def same(a, b):
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        x.dtype == u.dtype and torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def indices(iterator):
    return [batch.tolist() for batch, _ in iterator]


@pytest.mark.parametrize("augment", [None, "cifar.mhe"])
def test_equals_the_loop_over_samples(augment):
    data = array()
    order = torch.cat([x for x, _ in batches(numbered(N), 16, seed=3, epoch=2)]).tolist()
    assert sorted(order) == list(range(N))
    delivered = list(batches(data, 16, seed=3, epoch=2, augment=augment))
    assert [len(y) for _, y in delivered] == [16] * 6 + [7]
    place = 0
    for inputs, labels in delivered:
        assert inputs.dtype == torch.float32
        assert labels.dtype == torch.int64
        for x, y in zip(inputs, labels, strict=True):
            i = order[place]
            image, label = data[i]
            change = AUGMENTATIONS[augment] if augment else Normalize()
            assert torch.equal(x, change(image.unsqueeze(0), SampleGenerator(3, 2, [i]))[0])
            assert y == label
            place += 1
    assert place == N


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["array", "lazy"])
def test_equal_bytes_for_any_workers_from_any_position(kind, workers):
    data, augment, size = (array(), "cifar.mhe", 16) if kind == "array" else (lazy(), "imagenet", 3)
    options = {"seed": 5, "epoch": 1, "augment": augment}
    whole = list(batches(data, size, **options))
    for start in (0, 2):
        assert same(batches(data, size, start=start, workers=workers, **options), whole[start:])


def test_a_sample_is_the_same_in_batches_of_any_size():
    def all_of(data, size, **options):
        parts = list(batches(data, size, augment="cifar.mhe", **options))
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])

    data = array()
    inputs, labels = all_of(data, N)
    for size in (1, 7, 64):
        assert same([all_of(data, size)], [(inputs, labels)])
    in_order, _ = all_of(data, 20, shuffle=False)
    order = torch.cat([x for x, _ in batches(numbered(N), 50)])
    assert torch.equal(in_order[order], inputs)
    plain = Plain(data.inputs, data.labels, data.classes)  # read sample by sample
    assert same([all_of(plain, 16)], [(inputs, labels)])


def test_epochs_and_seeds_differ():
    orders = {tuple(indices(batches(numbered(50), 50, seed=s, epoch=e))[0]) for s in range(3) for e in range(3)}
    assert len(orders) == 9
    data = array()
    a, b = (torch.cat([x for x, _ in batches(data, 50, epoch=e, shuffle=False, augment="cifar.mhe")]) for e in (0, 1))
    assert (a != b).flatten(1).any(1).float().mean() > 0.9


def test_nothing_else_moves():
    data = array()
    before = data.inputs.clone()
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    for workers in (0, 1):
        list(batches(data, 50, augment="cifar.mhe", workers=workers))
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.equal(data.inputs, before)


def test_without_augment_only_pixels_change():
    for inputs in (torch.randn(4, 5, 3), torch.randn(4, 2, dtype=torch.float64), torch.arange(8).reshape(4, 2)):
        ((batch, _),) = batches(ArrayDataset(inputs, [0, 0, 1, 1], names(2)), 4, shuffle=False)
        assert batch.dtype == inputs.dtype
        assert torch.equal(batch, inputs)


def test_in_order():
    assert indices(batches(numbered(7), 3, shuffle=False)) == [[0, 1, 2], [3, 4], [5, 6]]
    assert indices(batches(numbered(3), 2, shuffle=False)) == [[0, 1], [2]]


def test_a_callable_of_the_users():
    def noise(inputs, generator):
        assert isinstance(generator, SampleGenerator)
        assert len(generator) == len(inputs)
        return inputs.float() + generator.normal(*inputs.shape[1:])

    data = ArrayDataset(torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64), names(1))
    a = torch.cat([x for x, _ in batches(data, 8, augment=noise)])
    b = torch.cat([x for x, _ in batches(data, 3, augment=noise, workers=1)])
    assert torch.equal(a, b)
    assert len(a.unique()) == 60


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("n", "size", "ranks"), [(40, 4, 2), (41, 4, 2), (43, 3, 4), (33, 2, 4), (4, 9, 4)])
def test_ranks_are_disjoint_and_complete(n, size, ranks, shuffle):
    parts = [
        indices(batches(numbered(n), size, seed=1, rank=rank, world_size=ranks, shuffle=shuffle))
        for rank in range(ranks)
    ]
    count = num_batches(numbered(n), size, ranks)
    assert {len(part) for part in parts} == {count}
    assert count == -(-n // (size * ranks))
    assert all(1 <= len(batch) <= size for part in parts for batch in part)
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(n))
    # one process with batches as large as those of all ranks together sees the same, but for what the end borrowed
    alone = indices(batches(numbered(n), size * ranks, seed=1, shuffle=shuffle))
    together = [[i for part in parts for i in part[k]] for k in range(count)]
    assert together[:-2] == alone[:-2]
    assert [i for batch in together for i in batch] == [i for batch in alone for i in batch]
    if n % (size * ranks) == 0 or n % (size * ranks) >= ranks:
        assert together == alone


def test_an_iterator_that_is_left_ends_its_workers():
    from torch.multiprocessing import active_children

    before = set(active_children())
    iterator = batches(array(), 8, workers=1)
    next(iterator)
    assert set(active_children()) - before
    del iterator
    assert not set(active_children()) - before


def counts(data):
    return data.labels.bincount(minlength=len(data.classes)).tolist()


@pytest.mark.parametrize(("classes", "per_class"), [(10, 5000), (100, 500)])
def test_imbalance_of_cifar(classes, per_class):
    single, multiple = (imbalance(balanced(classes, per_class), kind) for kind in ("single", "multiple"))
    tenth, unit = classes // 10, {10: 500, 100: 5}[classes]
    assert counts(single) == [per_class // 10] * tenth + [per_class] * (classes - tenth)
    assert counts(multiple) == [unit * (c + 1) for c in range(classes)]
    if classes == 10:
        assert (len(single), len(multiple)) == (45500, 27500)  # 003, Appendix A


def test_mnist_imbalance():
    sizes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = torch.arange(10).repeat_interleave(torch.tensor(sizes))
    few = imbalance(ArrayDataset(torch.arange(60000), labels, names(10)), "mnist0")
    assert counts(few) == [100, *sizes[1:]]


def test_small_classes_keep_a_sample():
    data = balanced(3, 2)
    assert counts(imbalance(data, "single")) == [1, 2, 2]
    assert counts(imbalance(data, "multiple")) == [1, 2, 2]


def test_imbalance_draws_by_seed_and_keeps_the_order():
    data = balanced(10, 50)
    first, again, other = (imbalance(data, "single", seed).inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first, first.sort().values)
    assert torch.equal(data.labels[first], imbalance(data, "single").labels)


@pytest.mark.parametrize(
    ("size", "expected"), [(100, [50, 30, 20]), (101, [51, 30, 20]), (0.1, [50, 30, 20]), (1, None)]
)
def test_holdout_is_stratified(size, expected):
    labels = torch.arange(3).repeat_interleave(torch.tensor([500, 300, 200]))[torch.randperm(1000)]
    data = ArrayDataset(torch.arange(1000), labels, names(3))
    train, validation = holdout(data, size)
    assert len(validation) == (100 if size == 0.1 else size)
    assert torch.equal(torch.cat([train.inputs, validation.inputs]).sort().values, torch.arange(1000))
    for part in (train, validation):
        assert torch.equal(part.labels, data.labels[part.inputs])
        assert torch.equal(part.inputs, part.inputs.sort().values)
    if expected:
        assert counts(validation) == expected
    assert torch.equal(holdout(data, size)[1].inputs, validation.inputs)
    assert not torch.equal(holdout(data, size, seed=1)[1].inputs, validation.inputs)


def test_each_sample_is_in_one_fold():
    labels = torch.arange(3).repeat_interleave(torch.tensor([503, 300, 200]))[torch.randperm(1003)]
    data = ArrayDataset(torch.arange(1003), labels, names(3))
    parts = [fold(data, number, 4) for number in (1, 2, 3, 4)]
    held = torch.cat([validation.inputs for _, validation in parts])
    assert torch.equal(held.sort().values, torch.arange(1003))
    for train, validation in parts:
        assert torch.equal(torch.cat([train.inputs, validation.inputs]).sort().values, torch.arange(1003))
        assert torch.equal(validation.labels, data.labels[validation.inputs])
        assert torch.equal(validation.inputs, validation.inputs.sort().values)
        assert len(validation) in (250, 251)
        assert all(abs(n - whole / 4) < 1 for n, whole in zip(counts(validation), (503, 300, 200), strict=True))
    assert torch.equal(fold(data, 2, 4)[1].inputs, parts[1][1].inputs)
    assert not torch.equal(fold(data, 2, 4, seed=1)[1].inputs, parts[1][1].inputs)


def test_holdout_of_few_in_many_classes():
    train, validation = holdout(balanced(100, 5), 37)
    assert sum(counts(validation)) == 37
    assert max(counts(validation)) == 1
    assert len(train) == 463


@pytest.mark.parametrize(("ways", "shots", "queries"), [(2, 1, 15), (5, 5, 15), (5, 5, 0)])
def test_episode(ways, shots, queries):
    data = balanced(20, 24)
    support, support_labels, query, query_labels = episode(data, 3, ways=ways, shots=shots, queries=queries, seed=7)
    assert support_labels.tolist() == [way for way in range(ways) for _ in range(shots)]
    assert query_labels.tolist() == [way for way in range(ways) for _ in range(queries)]
    drawn = torch.cat([support, query])
    assert len(drawn.unique()) == ways * (shots + queries) == len(drawn)  # nothing twice
    classes = data.labels[support].reshape(ways, shots)
    assert (classes == classes[:, :1]).all()
    assert len(classes[:, 0].unique()) == ways
    assert torch.equal(data.labels[query], classes[:, 0].repeat_interleave(queries))
    again = episode(data, 3, ways=ways, shots=shots, queries=queries, seed=7)
    assert all(torch.equal(a, b) for a, b in zip(again, (support, support_labels, query, query_labels), strict=True))


def test_episodes_differ_and_use_everything():
    data = balanced(20, 24)
    supports = [episode(data, index, seed=seed)[0] for seed in range(2) for index in range(200)]
    assert len({tuple(support.tolist()) for support in supports}) == 400
    seen = torch.cat(supports).bincount(minlength=480)
    assert seen.min() > 0
    classes = sum(data.labels[support[::5]].bincount(minlength=20) for support in supports)
    assert (classes - 100).abs().max() < 4.5 * (400 * 0.25 * 0.75) ** 0.5


def test_episode_of_images():
    data = array(N, 4)
    support, _, query, _ = episode(data, 0, ways=3, shots=2, queries=4)
    assert support.shape == (6, 3, 32, 32)
    assert support.dtype == query.dtype == torch.float32
    assert {tuple(x.flatten().tolist()) for x in torch.cat([support, query])} <= {
        tuple(x.flatten().tolist()) for x in Normalize()(data.inputs)
    }
    support, *_ = episode(lazy(), 0, ways=3, shots=2, queries=1, augment="imagenet.eval")
    assert support.shape == (6, 3, 224, 224)


def test_classes_without_samples_are_not_drawn():
    data = ArrayDataset(torch.arange(60), torch.arange(60) % 3 + 4, names(10))
    for index in range(20):
        support, *_ = episode(data, index, ways=3, shots=1, queries=1)
        assert sorted(data.labels[support].tolist()) == [4, 5, 6]
    assert counts(imbalance(data, "multiple")) == [0] * 4 + [10, 12, 14] + [0] * 3
    assert counts(holdout(data, 6)[1]) == [0] * 4 + [2, 2, 2] + [0] * 3


def test_a_data_set_without_subset():
    labels = torch.arange(200) % 10
    data = Plain(torch.arange(200), labels, names(10))
    few = imbalance(data, "single")
    assert counts(few) == [2] + [20] * 9
    assert few.classes == names(10)
    assert all(few[i] == (few[i][0], int(labels[few[i][0]])) for i in range(len(few)))
    train, validation = holdout(few, 10)  # of a part, again a part
    got = [x for part in (train, validation) for batch, _ in batches(part, 7) for x in batch.tolist()]
    assert sorted(got) == sorted(int(x) for x, _ in (few[i] for i in range(len(few))))
    nameless = imbalance(Plain(torch.arange(200), labels), "multiple")
    assert nameless.labels.bincount().tolist() == [2 * (c + 1) for c in range(10)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(1), 0)])


def wrong_labels():
    data = numbered(6)
    data.labels[3] = 1
    return data


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: batches(numbered(5), 0), "batch_size must be >= 1, got 0"),
        (lambda: batches(numbered(5), 2, start=4), "start must be <= 3, the number of batches, got 4"),
        (lambda: batches(numbered(5), 2, seed=-1), "seed must be >= 0, got -1"),
        (lambda: batches(numbered(5), 2, rank=2, world_size=2), "rank must be < world_size = 2, got 2"),
        (lambda: batches(numbered(5), 1, world_size=2), "got 2 ranks for 5 samples in batches of 1"),
        (lambda: batches(array(), 2, augment="cifar.mhee"), r"'cifar.mhee', did you mean 'cifar.mhe'\?"),
        (lambda: batches(array(0), 2), "dataset must have samples, got none"),
        (lambda: batches(Stream(), 2), r"dataset must have len\(\) and dataset\[i\], got Stream"),
        (lambda: batches(np.zeros((4, 3)), 2), r"dataset must be a torch Dataset .*got ndarray; .*ArrayDataset\("),
        (lambda: list(batches([(1, 2, 3)], 2)), r"dataset\[0\] must be a pair \(input, label\), got a tuple of 3"),
        (lambda: batches(wrong_labels(), 2), "labels must be 0 to 0 for 1 classes, got 1"),
        (lambda: batches(Plain(torch.zeros(3), [0, 0, 0]), 2), "labels must be a tensor of 3 labels.*got list"),
        (
            lambda: list(batches(lazy(), 5)),
            r"^resize images with data.size .*one shape, got \(3, \d+, \d+\) and",
        ),
        (lambda: list(batches(numbered(5), 2, augment=lambda x, g: x[:1])), "tensor of 2 samples.*got"),
        (lambda: imbalance(numbered(5), "singel"), r"did you mean 'single'\? \(one of"),
        (lambda: imbalance(numbered(99), "mnist0"), "100 samples of class 0 for 'mnist0', got 99"),
        (
            lambda: imbalance(TensorDataset(torch.zeros(3)), "single"),
            "dataset must have .labels.*TensorDataset without",
        ),
        (lambda: imbalance(Plain(torch.zeros(2), torch.zeros(2, 2).long()), "single"), r"ints \(N,\), got \(2, 2\)"),
        (lambda: imbalance(Plain(torch.zeros(2), torch.tensor([0, -1])), "single"), "labels must be >= 0, got -1"),
        (lambda: fold(numbered(5), 1, 1), "folds must be 2 to 5, the number of samples, got 1"),
        (lambda: fold(numbered(5), 0, 2), "number must be 1 to 2, the number of folds, got 0"),
        (lambda: holdout(numbered(5), 5), "size must be 1 to 4 of 5 samples, got 5"),
        (lambda: holdout(numbered(5), 1.5), "size must be finite and >= 0 and <= 1, got 1.5"),
        (lambda: episode(balanced(4, 20), 0), "ways must be <= 4, the number of classes with samples, got 5"),
        (lambda: episode(balanced(5, 19), 0), "got 5 \\+ 15, but class 0 has 19"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_what_goes_wrong_in_a_worker_is_told():
    with pytest.raises(ValueError, match="samples of a batch must have one shape"):
        list(batches(lazy(), 5, workers=1))
