"""stream=: the loss a block of classes at a time is the loss from all logits at once, with all its derivatives."""

import copy

import pytest
import torch

import hypersphere as hs
from hypersphere.losses import AngularSoftmaxLoss
from hypersphere.losses.heads import HEADS
from hypersphere.losses.logit_rule import LogitRule
from hypersphere.losses.margins import MARGINS
from hypersphere.losses.streaming import sum_over_classes
from tests.largest import Largest

F64 = torch.float64
C, D, B = 23, 5, 9
OPTIONS = {
    "plain": {},
    "bias": {"bias": True},
    "smoothed": {"label_smoothing": 0.2, "bias": True},
    "weighted": {"class_weight": torch.rand(C) + 0.1},
    "weighted and smoothed": {"class_weight": torch.rand(C) + 0.1, "label_smoothing": 0.3},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none", "energy_weight": 0.5},
}
SIMILARITIES = ["cosine", "linear", "sigmoid(0.7)", "learnable"]


def make(head, dtype=F64, **options):
    torch.manual_seed(3)
    made = head(C, D, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def batch(dtype=F64):
    labels = torch.tensor([0, 3, 22, 3, 7, 8, -100, 15, 16])
    return (3 * torch.randn(B, D, dtype=dtype)).requires_grad_(), labels


def gradients(head, x, labels, **options):
    loss = head(x, labels, **options)
    return [loss, *torch.autograd.grad(loss.sum(), [x, *head.parameters()])]


def both(head, **options):
    """The same head, streamed in blocks of 8 and from all logits."""
    return make(head, stream=8, **options), make(head, stream=False, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", HEADS)
def test_equal_to_the_loss_from_all_logits(name, options):
    if name in ("sphereface2", "uniface"):
        options = {key: value for key, value in options.items() if key != "label_smoothing"}
    streamed, plain = both(HEADS[name], **options)
    x, labels = batch()
    for got, expected in zip(gradients(streamed, x, labels), gradients(plain, x, labels), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [None, 20.0])
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("margin", [None, *MARGINS])
def test_every_margin_and_similarity(margin, similarity, scale):
    settings = {"similarity": similarity, "scale": scale, "bias": True, "label_smoothing": 0.1}
    settings["margin"] = None if margin is None else (margin, 1.5 if margin == "multiplicative" else 0.3)
    streamed, plain = both(AngularSoftmaxLoss, **settings)
    x, labels = batch()
    weights = {"sample_weight": torch.rand(B, dtype=F64)}
    results = (gradients(head, x, labels, **weights) for head in (streamed, plain))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_first_and_second_derivatives(similarity):
    head = make(AngularSoftmaxLoss, similarity=similarity, margin=("additive_angle", 0.3), stream=8, bias=True)
    head.label_smoothing = 0.1
    x, labels = batch()
    parameters = dict(head.named_parameters())

    def loss(x, *values):
        return torch.func.functional_call(head, dict(zip(parameters, values, strict=True)), (x, labels))

    assert torch.autograd.gradcheck(loss, (x, *parameters.values()))
    assert torch.autograd.gradgradcheck(loss, (x, *parameters.values()), fast_mode=True)


def test_zero_rows_are_finite_and_equal():
    streamed, plain = both(hs.ArcFaceLoss)
    x, labels = batch()
    for head in (streamed, plain):
        head.weight.data[[3, 5]] = 0
    x.data[[0, 1]] = 0
    for got, expected in zip(gradients(streamed, x, labels), gradients(plain, x, labels), strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(dtype):
    streamed, plain = both(hs.ArcFaceLoss, dtype=dtype)
    x, labels = batch(dtype)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    for got, expected in zip(gradients(streamed, x, labels), gradients(plain, x, labels), strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("stream", [8, False])
@pytest.mark.parametrize("options", [{}, {"subcenters": 2}, {"bias": True}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64])
def test_weights_near_the_largest_number_count_by_direction(dtype, options, stream):
    """Their norms overflow, and their products with embeddings; a zero row beside them stays one."""
    head = make(hs.losses.WSoftmaxLoss, dtype, stream=stream, **options)
    head.weight.data[4] = 0
    x, labels = batch(dtype)
    expected = head(x, labels)
    head.weight.data *= torch.finfo(dtype).max / head.weight.abs().max()
    loss, *grads = gradients(head, x, labels)
    torch.testing.assert_close(loss, expected)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("stream", [8, False])
def test_weights_of_one_number_near_the_largest(stream):
    """Their norms do not overflow, their products do."""
    head = hs.losses.WSoftmaxLoss(2, 1, stream=stream)
    head.weight.data = torch.tensor([[1e38], [-1e38]])
    x = torch.tensor([[20.0], [-1.0]], requires_grad=True)
    loss, *grads = gradients(head, x, torch.tensor([0, 1]))
    torch.testing.assert_close(loss.item(), torch.nn.functional.softplus(torch.tensor([-40.0, -2.0])).mean().item())
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    "options", [{"stream": 8}, {"stream": False}, {"sparse": True}, {"sample": 22, "sparse": True}]
)
@pytest.mark.parametrize("of", ["embeddings", "weight"])
def test_float16_gradients_beyond_its_range_are_its_largest_number(of, options):
    head = make(hs.ArcFaceLoss, torch.float16 if of == "weight" else torch.float32, scale=1000.0, **options)
    x, labels = batch(torch.float16)
    leaf = head.weight if of == "weight" else x
    leaf.data = torch.nn.functional.normalize(leaf.data.float()).half() / 8192
    grads = [grad.to_dense() for grad in gradients(head, x, labels)[1:]]
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[of == "weight"].abs().max() == torch.finfo(torch.float16).max


def test_far_classes_are_skipped_and_change_nothing():
    """Blocks 1 and 2 have probabilities below 2⁻²⁴: their class weights get gradient 0."""
    streamed, plain = both(hs.AMSoftmaxLoss, scale=64.0)
    x = torch.zeros(2, D, dtype=F64).index_fill_(1, torch.tensor([0]), 1.0).requires_grad_()
    streamed.weight.data[8:, 0] = -9.0
    plain.load_state_dict(streamed.state_dict())
    labels = torch.tensor([1, 2])
    got, expected = gradients(streamed, x, labels), gradients(plain, x, labels)
    assert not got[2][8:].any()
    assert expected[2][8:].any()
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "bias": True}, {"class_weight": [0.5] * 5000}])
def test_no_tensor_of_batch_times_classes(options):
    head = hs.ArcFaceLoss(5000, 4, stream=512, **options)
    x, labels = torch.randn(64, 4, requires_grad=True), torch.randint(5000, (64,))
    with Largest() as streamed:
        head(x, labels).backward()
    assert streamed.most == 512 * 64
    head.stream = False
    with Largest() as plain:
        head(x, labels).backward()
    assert plain.most == 5000 * 64


def test_auto_streams_above_32_megabytes():
    head = hs.ArcFaceLoss(1_200_000, 2)
    with Largest() as few:
        head(torch.randn(6, 2), torch.zeros(6, dtype=torch.int64))
    with Largest() as many:
        head(torch.randn(8, 2), torch.zeros(8, dtype=torch.int64))
    assert few.most == 6 * 1_200_000
    assert many.most == 2 * 1_200_000  # of the gradient


@pytest.mark.parametrize("centers", [1, 3])
@pytest.mark.parametrize("softplus", [False, True])
def test_sums_of_a_part_of_the_classes(softplus, centers):
    """Sub-centers, classes that count several times, and labels of classes that are elsewhere, by a loop."""
    torch.manual_seed(1)
    rule = LogitRule(4.0, None, 5, softplus, centers)
    target = torch.tensor([-1, 0, 6, 7, 12])
    x = torch.nn.functional.normalize(torch.randn(5, D, dtype=F64)).requires_grad_()
    weight = torch.randn(7 * centers, D, dtype=F64, requires_grad=True)
    bias, counts = torch.randn(7, dtype=F64, requires_grad=True), torch.rand(7, dtype=F64) + 0.5

    def sums(stream):
        return sum_over_classes(x, weight, target, rule, bias=bias, multiplicity=counts, stream=stream)[:2]

    rows = torch.nn.functional.normalize(weight).view(7, centers, D)
    for i, (label, sample) in enumerate(zip(target, x, strict=True)):
        cosines = (rows @ sample).amax(1)
        terms = [(counts[j], 4 * cosines[j] + bias[j]) for j in range(7) if j != label]
        if softplus:
            others = sum(count * logit.exp().log1p() for count, logit in terms)
        else:
            others = sum(count * logit.exp() for count, logit in terms).log()
        literal = (others, cosines[label] if 0 <= label < 7 else others * 0)
        for stream in (True, False):
            torch.testing.assert_close(tuple(values[i] for values in sums(stream)), literal)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *_: sums(True), (x, weight, bias), fast_mode=True)


def test_bad_values_and_copies():
    for stream in ("yes", -1, 2.5, None):
        with pytest.raises(ValueError, match="stream must be True, False, 'auto' or a number of classes, got"):
            hs.ArcFaceLoss(10, 3, stream=stream)
    with pytest.raises(ValueError, match="stream=True needs a similarity of hypersphere"):
        hs.WSoftmaxLoss(10, 3, similarity=torch.tanh, stream=True)
    hs.WSoftmaxLoss(10, 3, similarity=torch.tanh)(torch.randn(2, 3), torch.tensor([1, 2]))
    head = hs.ArcFaceLoss(10, 3, stream=4)
    x, labels = torch.randn(2, 3), torch.tensor([1, 2])
    torch.testing.assert_close(copy.deepcopy(head)(x, labels), head(x, labels))
    torch.testing.assert_close(head(1e30 * x, labels), head(x, labels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_compiled_heads_take_all_logits_at_once(similarity):
    """The gradient of a block by autograd inside of a backward pass cannot be compiled."""
    head = make(hs.WSoftmaxLoss, similarity=similarity, stream=8)
    x, labels = batch()
    compiled = torch.compile(head, fullgraph=True, backend="eager")
    for got, expected in zip(gradients(compiled, x, labels), gradients(head, x, labels), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("scale", [64.0, 100.0])
def test_float32_is_as_near_to_float64_as_all_logits_at_once(scale, fitted):
    """Without a maximum (s = 64) and with one; and where blocks are skipped."""
    torch.manual_seed(0)
    exact, plain, streamed = (
        hs.ArcFaceLoss(1000, 64, scale=scale, dtype=dtype, stream=stream)
        for dtype, stream in ((F64, False), (torch.float32, False), (torch.float32, 128))
    )
    for head in (exact, plain, streamed):
        head.load_state_dict(exact.state_dict())
    labels = torch.randint(1000, (32,))
    x = plain.weight.detach()[labels] * 10 + 0.1 * torch.randn(32, 64) if fitted else torch.randn(32, 64)
    results = [gradients(head, x.to(head.weight.dtype).requires_grad_(), labels) for head in (exact, plain, streamed)]
    for expected, theirs, ours in zip(*results, strict=True):
        error, usual = ((value - expected).abs().max() for value in (ours, theirs))
        assert error <= 2 * usual + 1e-6 * expected.abs().max()
    if fitted:  # the label's logit alone makes all other classes negligible
        assert (results[2][2] == 0).all(1).sum() > 900
        assert (results[0][2] != 0).all()


def test_a_kept_graph_gives_the_same_gradients_again():
    head = make(hs.ArcFaceLoss, stream=8)
    x, labels = batch()
    loss = head(x, labels)
    first, second = (torch.autograd.grad(loss, [x, head.weight], retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))
