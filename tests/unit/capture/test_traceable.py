"""What a network must be to be captured; and what torch.utils.checkpoint computes again is captured right."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.unit.capture.eager import CLASSES, assert_model_bitwise
from tests.unit.capture.refusals import refusal


class Checkpointed(nn.Module):
    """Computes its inner layers again in the backward pass."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), *inner, nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, rows):
        return self.head(checkpoint(self.inner, rows, use_reentrant=False))


class Reentrant(Checkpointed):
    """Computes them again in the older way, of rows whose own gradient nobody wants."""

    def forward(self, rows):
        return self.head(checkpoint(self.inner, rows.clone().requires_grad_(), use_reentrant=True))


class Overlapping(nn.Linear):
    """Has a second parameter, or a buffer, in the memory of the first one."""

    def __init__(self, held=nn.Parameter):
        super().__init__(6, 3)
        self.other = held(self.weight.data[1:])

    def forward(self, rows):
        return super().forward(rows) + (rows @ self.other.t()).sum(1, keepdim=True)


class Hooked(nn.Linear):
    """Keeps some weights as they are, by a hook on their gradient; or does something when there is one."""

    def __init__(self, *, afterwards=False):
        super().__init__(6, CLASSES)
        mask = torch.arange(6) % 2
        if afterwards:
            self.weight.register_post_accumulate_grad_hook(lambda weight: None)
        self.weight.register_hook(lambda gradient: gradient * mask)


class Halves(nn.Module):
    """Has two parameters beside each other in one storage, and twice a buffer that none changes."""

    def __init__(self):
        super().__init__()
        both = torch.randn(10, 6)
        self.upper, self.lower = nn.Parameter(both[:5]), nn.Parameter(both[5:])
        self.register_buffer("scale", torch.ones(5))
        self.register_buffer("again", self.scale[:])

    def forward(self, rows):
        return rows @ self.upper.t() * self.scale + rows @ self.lower.t() * self.again


class Listed(nn.Linear):
    """Takes its weight, or a view of it, from elsewhere than itself."""

    def __init__(self, kept):
        super().__init__(6, 3)
        self.kept = [kept(self.weight)]

    def forward(self, rows):
        return rows @ self.kept[0].t() + self.bias


class Detached(nn.Linear):
    """Gives what has no gradient."""

    def forward(self, rows):
        return super().forward(rows).detach()


@pytest.mark.slow
@pytest.mark.parametrize("inner", [[], [nn.BatchNorm1d(8)]], ids=["plain", "batch norm"])
def test_what_a_checkpoint_computes_again_is_of_the_state_and_bitwise_eagers(inner):
    torch.manual_seed(0)
    assert_model_bitwise(Checkpointed(*inner), (8, 6), "adam")


def test_a_checkpoint_that_would_draw_again_is_refused():
    told = refusal(Checkpointed(nn.Dropout(0.5)))
    assert told.startswith(
        'architecture "mine" draws random numbers in its backward pass, as a dropout within'
    )


def test_a_reentrant_checkpoint_is_refused_whose_layers_would_not_be_trained():
    told = refusal(Reentrant())
    assert told == (
        'architecture "mine" has a torch.utils.checkpoint with use_reentrant=True, whose gradients cannot be'
        " captured"
    )


class Wide(nn.Linear):
    """Has a wide buffer, in it a narrow one, and behind that one a parameter."""

    def __init__(self):
        super().__init__(6, 3)
        row = torch.zeros(30)
        self.wide, self.narrow = nn.Buffer(row), nn.Buffer(row[2:4])
        self.bias = nn.Parameter(row[6:9])


def test_a_parameter_in_the_memory_of_a_buffer_that_is_not_its_neighbour_is_refused():
    assert refusal(Wide()).startswith('architecture "mine" has wide and bias in the same memory')


@pytest.mark.parametrize("held", [nn.Parameter, nn.Buffer])
def test_a_parameter_in_the_memory_of_another_tensor_is_refused(held):
    told = refusal(Overlapping(held))
    assert told == (
        'architecture "mine" has weight and other in the same memory, and they would be trained apart'
    )


class Interleaved(nn.Module):
    """Has two parameters whose rows lie between each other's."""

    def __init__(self):
        super().__init__()
        both = torch.randn(CLASSES, 8)
        self.weight, self.scale = nn.Parameter(both[:, :6]), nn.Parameter(both[:, 6:])

    def apart(self):
        """Return it with the same parameters, each of its own memory."""
        made = deepcopy(self)
        made.weight, made.scale = (nn.Parameter(each.detach().clone()) for each in self.parameters())
        return made

    def forward(self, rows):
        return nn.functional.linear(rows, self.weight) * self.scale.sum(1)


def test_parameters_between_each_others_rows_are_trained_as_if_each_had_its_own_memory():
    torch.manual_seed(0)
    model = Interleaved()
    assert_model_bitwise(model, (8, 6), "adam", eager=model.apart())


class Expanded(nn.Linear):
    """Has one number for all that it multiplies its outputs by."""

    def __init__(self):
        super().__init__(6, 3)
        self.scale = nn.Parameter(torch.ones(1).expand(3))

    def forward(self, rows):
        return super().forward(rows) * self.scale


def test_a_parameter_whose_elements_are_one_is_refused():
    assert refusal(Expanded()) == (
        'architecture "mine" has several elements of scale in the same memory, which no optimizer can update'
    )


class Counting(nn.Linear):
    """Has a buffer in another one's memory, through an array of numpy's, and may change it."""

    def __init__(self, *, counts):
        super().__init__(6, CLASSES)
        self.counts = counts
        self.seen = nn.Buffer(torch.zeros(4))
        self.last = nn.Buffer(torch.from_numpy(self.seen.numpy()[3:]))

    def forward(self, rows):
        if self.counts:
            self.seen.add_(1)
        return super().forward(rows) + self.last


def test_a_buffer_that_changes_in_the_memory_of_another_one_is_refused():
    assert refusal(Counting(counts=True)) == (
        'architecture "mine" changes seen, and has seen and last in the same memory'
    )


def test_buffers_that_stay_as_they_are_may_share_memory():
    torch.manual_seed(0)
    assert_model_bitwise(Counting(counts=False), (8, 6), "adam")


def test_what_a_hook_makes_of_a_gradient_is_bitwise_eagers():
    torch.manual_seed(0)
    assert_model_bitwise(Hooked(), (8, 6), "adam")


def test_a_hook_that_nothing_would_call_is_refused():
    assert refusal(Hooked(afterwards=True)) == (
        'architecture "mine" has a hook for when the gradient of weight has been accumulated, which nothing'
        " would call"
    )


def test_parameters_beside_each_other_in_a_storage_are_trained_bitwise_as_eagers():
    torch.manual_seed(0)
    assert_model_bitwise(Halves(), (8, 6), "adam")


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda weight: weight, id="the parameter"),
        pytest.param(lambda weight: weight.detach(), id="what shares its bytes"),
    ],
)
def test_a_parameter_that_is_not_taken_from_its_module_is_refused(kept):
    assert refusal(Listed(kept)).startswith('architecture "mine" takes weight from elsewhere than a module')


def test_a_parameter_of_no_module_is_refused():
    told = refusal(Listed(lambda _: nn.Parameter(torch.ones(3, 6))))
    assert told.startswith('architecture "mine" takes a parameter from elsewhere than a module')


class Looked(nn.Module):
    """Has sparse gradients."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Embedding(5, 3, sparse=True)

    def forward(self, tokens):
        return self.inner(tokens).sum(1)


def test_sparse_gradients_are_refused():
    assert (
        refusal(Looked(), torch.int64) == 'architecture "mine" has sparse gradients, which cannot be captured'
    )


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: nn.LazyLinear(3), "has lazy modules, whose parameters have no shape yet"),
        (lambda: torch.jit.script(nn.Linear(6, 3)), "is compiled by torch.jit, and cannot be captured"),
        (lambda: nn.DataParallel(nn.Linear(6, 3)), "is wrapped for several devices, and runs on one"),
        (lambda: nn.Linear(6, 3).requires_grad_(requires_grad=False), "has no parameters to train"),
        (lambda: nn.Flatten(), "has no parameters to train"),
        (lambda: Detached(6, 3), "gives outputs that do not depend on what is trained"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_what_cannot_be_trained_is_refused_in_a_sentence(model, told):
    assert refusal(model()) == f'architecture "mine" {told}'


class Seeded(nn.Linear):
    """Draws numbers from a generator of its own."""

    def __init__(self):
        super().__init__(6, CLASSES)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, rows):
        return super().forward(rows + torch.rand(rows.shape, generator=self.generator))


class Aside(nn.Linear):
    """Takes gradients of its own before the step's are taken."""

    def forward(self, rows):
        super().forward(rows.detach()).sum().backward()
        return super().forward(rows)


class Thawing(nn.Linear):
    """Begins to train its bias in the forward pass."""

    def __init__(self):
        super().__init__(6, CLASSES)
        self.bias.requires_grad_(False)

    def forward(self, rows):
        self.bias.requires_grad_(True)
        return super().forward(rows)


def held(tensor):
    """Return a network with this buffer."""
    network = nn.Linear(6, CLASSES)
    network.register_buffer("held", tensor)
    return network


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Seeded, "draws random numbers from a generator of its own"),
        (lambda: Aside(6, CLASSES), "adds to a gradient of weight by backward()"),
        (Thawing, "begins to train bias in its forward pass"),
        (lambda: held(torch.eye(3).to_sparse()), "has held, which is torch.sparse_coo"),
        (
            lambda: held(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
            "has held, which is quantized",
        ),
    ],
)
def test_what_a_captured_step_does_not_have_is_refused(model, told):
    assert refusal(model()).startswith(f'architecture "mine" {told}')


class Cast(nn.Linear):
    """Uses a weight twice in a region of autocast."""

    def __init__(self):
        super().__init__(6, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            twice = super().forward(super().forward(rows))
        return self.head(twice.float())


@pytest.mark.slow
def test_a_region_of_autocast_casts_a_weight_once_as_eagers_does():
    torch.manual_seed(0)
    assert_model_bitwise(Cast(), (8, 6), "momentum")
