"""The check of models: what every `vertizo.models.base.Model` must do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import torch
from torch import Tensor, nn

from vertizo.core.names import LawName
from vertizo.core.randomness import Stream
from vertizo.models.base import DifferentiableModel, Model, Points, copied
from vertizo.models.parts import materialised
from vertizo.models.torch import wrap
from vertizo.testing.demands import demand
from vertizo.zeroth_order.directions import Directions
from vertizo.zeroth_order.estimators import at_once, in_place, outputs

OFFSETS = (1e-2, -1e-2, 0.0, 0.3)


def check_model(
    make: Callable[[], nn.Module | Model], inputs: Tensor, *, rough: bool = False
) -> None:
    """Check that a model does what every model must; else raise AssertionError, in one line.

    Outputs are rows of numbers that depend on the parameters and the record alone, not on the batch
    around it; random draws are PyTorch's, from its default generator; a saved model is restored as
    it was; evaluations along a direction are those at shifted parameters; and gradients agree with
    differences.

    Args:
        make: makes a model with random first parameters: a module, or a `Model` of another kind.
            For a class derived from `vertizo.config.architectures.OwnModel`,
            ``lambda: Mine().module(shape, None)``.
        inputs: features of four records or more, [batch, ...], as the model gets them.
        rough: whether outputs jump, so that rounding of the parameters shows in their slopes.
    """
    for held in CONTRACT:
        held(_made(make, inputs), inputs)
    _first_parameters_are_pytorchs(make, inputs)
    _what_was_saved_goes_on(make, inputs)
    in_place_and_at_once_agree(_made(make, inputs), inputs, rough=rough)


def normal(seed: int, *shape: int) -> Tensor:
    """Normal numbers [shape] drawn from that seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def direction_for(model: Model) -> Tensor:
    """A random direction of the model's parameters, [d]."""
    return normal(5, model.parameters.numel())


def others_than(records: int, one: int) -> list[int]:
    """Numbers of all records but one."""
    return [record for record in range(records) if record != one]


def replaced(inputs: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield a record's number, and inputs in which it is another record, huge or NaN."""
    for record in (0, len(inputs) // 2, len(inputs) - 1):
        values: list[Tensor | float] = [inputs[record - 1]]
        if inputs.is_floating_point():
            values += [1e30, torch.nan]
        for value in values:
            changed = inputs.clone()
            changed[record] = value
            yield record, changed


def _made(make: Callable[[], nn.Module | Model], inputs: Tensor, seed: int = 0) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = make()
        return wrap(materialised(made, inputs[:2])) if isinstance(made, nn.Module) else made


def _named(model: Model) -> str:
    return type(getattr(model, "module", model)).__name__


def _first_parameters_are_pytorchs(make: Callable[[], nn.Module | Model], inputs: Tensor) -> None:
    """Check that first parameters come from PyTorch's generator, so that a seed decides them."""
    one, other = (_made(make, inputs).parameters for _ in range(2))
    demand(torch.equal(one, other), f"{make!r}: the seed does not decide its first parameters")


def _what_was_saved_goes_on(make: Callable[[], nn.Module | Model], inputs: Tensor) -> None:
    one, other = _made(make, inputs), _made(make, inputs, seed=1)
    one.parameters.add_(direction_for(one))
    other.load(copied(one.state()))
    same = torch.equal(one(inputs), other(inputs))
    demand(same, f"{_named(one)}: saved and loaded, it gives something else")


def _only_parameters_decide(model: Model, inputs: Tensor) -> None:
    name, kept = _named(model), inputs.clone()
    result = model(inputs).clone()
    rows = (result.dim(), len(result), result.dtype) == (2, len(inputs), torch.float32)
    demand(rows, f"{name}: outputs are {result.dtype} of shape {tuple(result.shape)}")
    flat = (model.parameters.dim(), model.parameters.requires_grad) == (1, False)
    demand(flat, f"{name}: parameters are no flat vector without a graph")
    demand(not model(inputs).requires_grad, f"{name}: outputs hang on a graph")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        model.along(direction_for(model), OFFSETS, inputs)
        demand(torch.equal(model(inputs), result), f"{name}: the same again gives something else")
    demand(torch.equal(inputs, kept), f"{name} changes its inputs")


def _parameters_are_live(model: Model, inputs: Tensor) -> None:
    """Check that changed parameters change the model, and no outputs that were given before."""
    name, result = _named(model), model(inputs)
    before = result.clone()
    model.parameters.add_(direction_for(model))
    demand(not torch.allclose(model(inputs), before), f"{name}: its parameters move nothing")
    model(inputs.flip(0))
    demand(torch.equal(result, before), f"{name}: a later evaluation changes earlier outputs")


def _at(model: Model, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Outputs at other parameters; the model's own are restored afterwards."""
    saved = model.parameters.clone()
    model.parameters.copy_(parameters)
    try:
        return model(inputs).clone()
    finally:
        model.parameters.copy_(saved)


def _along_is_at_shifted_parameters(model: Model, inputs: Tensor) -> None:
    name, direction = _named(model), direction_for(model)
    before, kept = model.parameters.clone(), direction.clone()
    result = model.along(direction, OFFSETS, inputs)
    demand(torch.equal(model.parameters, before), f"{name}: along a direction, parameters move")
    demand(torch.equal(direction, kept), f"{name}: along a direction, the direction changes")
    demand(result.dtype == torch.float32, f"{name}: outputs along a direction are {result.dtype}")
    demand(not result.requires_grad, f"{name}: outputs along a direction hang on a graph")
    for offset, found in zip(OFFSETS, result, strict=True):
        expected = _at(model, model.parameters + offset * direction, inputs)
        near = found.shape == expected.shape and torch.allclose(
            found, expected, rtol=1e-4, atol=1e-5
        )
        demand(near, f"{name}: along a direction, {offset} is not at w + {offset} u")
    demand(not torch.allclose(result[0], result[3], rtol=1e-2), f"{name}: offsets move nothing")
    longer = torch.cat([torch.full((4,), 50.0), direction, torch.full((3,), -50.0)])
    again = model.along(longer[4:-3], OFFSETS, inputs)
    demand(torch.equal(again, result), f"{name}: a direction that is a view gives something else")


def in_place_and_at_once_agree(model: Model, inputs: Tensor, *, rough: bool) -> None:
    """Check that both ways to evaluate along a direction agree, and that parameters come back."""
    name, offsets, before = _named(model), (1e-3, -1e-3), model.parameters.clone()
    laws: tuple[LawName, ...] = get_args(LawName)
    for law in laws:
        directions = Directions(law, before.numel(), Stream.from_seed(8).child(law))
        for number in range(19 if law == "scaled-sphere" else 0, -1, -1):
            direction = directions.draw(number)
            one = in_place(model, inputs, direction, offsets)
        back = torch.allclose(model.parameters, before, rtol=1e-6, atol=1e-6)
        demand(back, f"{name}: evaluated in place along {law}, parameters do not come back")
        other = at_once(model, inputs, direction, offsets)
        chosen = outputs(model, inputs, direction, offsets)
        for found in (one, chosen):
            near = torch.allclose(found, other, rtol=1e-5, atol=2e-6)
            demand(near, f"{name}: in place and at once differ along {law}")
        if not rough:
            slopes = [(plus - minus) / 2e-3 for plus, minus in (one, other)]
            near = torch.allclose(slopes[0], slopes[1], rtol=1e-2, atol=5e-3)
            demand(near, f"{name}: slopes in place and at once differ along {law}")


def _a_record_leaves_the_others_alone(model: Model, inputs: Tensor) -> None:
    name, direction = _named(model), direction_for(model)
    for record, changed in replaced(inputs):
        rows = others_than(len(inputs), record)
        alone = torch.equal(model(inputs)[rows], model(changed)[rows])
        demand(alone, f"{name}: a record decides outputs of another")
        one, other = (model.along(direction, OFFSETS, x)[:, rows] for x in (inputs, changed))
        demand(torch.equal(one, other), f"{name}: a record decides others along a direction")


def _order_and_company_do_not_matter(model: Model, inputs: Tensor) -> None:
    name, whole = _named(model), model(inputs)
    turned = torch.allclose(model(inputs.flip(0)).flip(0), whole, rtol=1e-5, atol=1e-6)
    demand(turned, f"{name}: the order of records decides outputs")
    apart = torch.cat([model(inputs[i : i + 1]) for i in range(len(inputs))])
    alone = torch.allclose(apart, whole, rtol=1e-5, atol=1e-6)
    demand(alone, f"{name}: records alone and in a batch differ")


def _slopes_are_those_of_differences(model: Model, inputs: Tensor) -> None:
    """Check that ``pullback(g) · u`` is the derivative of ``Σ g·h`` along u, by differences."""
    if not isinstance(model, DifferentiableModel):
        return
    name, untouched = _named(model), inputs.clone()
    result, pullback = model.forward(Points(inputs))
    demand(not result.requires_grad, f"{name}: outputs hang on a graph")
    near = torch.allclose(result, model(inputs), rtol=1e-5, atol=1e-6)
    demand(near, f"{name}: with a gradient, outputs are others")
    demand(torch.equal(inputs, untouched), f"{name} changes its inputs")
    weights = normal(2, *result.shape)
    kept = weights.clone()
    gradient = pullback(weights).clone()
    demand(gradient.shape == model.parameters.shape, f"{name}: a gradient is of another shape")
    direction = direction_for(model)
    direction /= direction.norm()
    plus, minus = model.along(direction, (5e-3, -5e-3), inputs)
    _near(gradient @ direction, ((plus - minus) / 1e-2 * weights).sum(), 2e-2, name)
    demand(torch.equal(weights, kept), f"{name}: a pullback changes what it is given")
    if inputs.is_floating_point():
        to_inputs = pullback.inputs(weights)
        demand(to_inputs.shape == inputs.shape, f"{name}: inputs' gradient is of another shape")
        by = normal(3, *inputs.shape)
        moved = model(inputs + 1e-3 * by) - model(inputs - 1e-3 * by)
        _near((to_inputs * by).sum(), (moved * weights).sum() / 2e-3, 5e-2, name)


def _near(found: Tensor, slope: Tensor, absolute: float, name: str) -> None:
    off = abs(float(found - slope))
    words = f"{name}: a slope is {float(found):.4g}; differences give {float(slope):.4g}"
    demand(off <= max(absolute, 2e-2 * abs(float(slope))), words)


def _pullbacks_add_up(model: Model, inputs: Tensor) -> None:
    """Check that pullbacks are linear, that the rows' sum to the batch's, and that an input's
    gradient depends on its record alone."""
    if not isinstance(model, DifferentiableModel):
        return
    name, (result, pullback) = _named(model), model.forward(Points(inputs))
    weights = normal(2, *result.shape)
    whole = pullback(weights).clone()
    linear = torch.allclose(pullback(2 * weights), 2 * whole, rtol=1e-5, atol=1e-5)
    demand(linear, f"{name}: a pullback is not linear")
    parts = torch.zeros_like(whole)
    for row in range(len(inputs)):
        _, one = model.forward(Points(inputs[row : row + 1]))
        parts += one(weights[row : row + 1])
    adds = torch.allclose(parts, whole, rtol=1e-4, atol=1e-4)
    demand(adds, f"{name}: records' gradients do not add up to the batch's")
    if not inputs.is_floating_point():
        return
    own = pullback.inputs(torch.ones_like(result)).clone()
    record, changed = next(replaced(inputs))
    result, pullback = model.forward(Points(changed))
    gradients = pullback.inputs(torch.ones_like(result))
    rows = others_than(len(inputs), record)
    alone = torch.equal(own[rows], gradients[rows])
    demand(alone, f"{name}: a record decides the gradient of another's inputs")


CONTRACT: tuple[Callable[[Model, Tensor], None], ...] = (
    _only_parameters_decide,
    _parameters_are_live,
    _along_is_at_shifted_parameters,
    _a_record_leaves_the_others_alone,
    _order_and_company_do_not_matter,
    _slopes_are_those_of_differences,
    _pullbacks_add_up,
)
