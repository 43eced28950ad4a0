"""Models of clients and of the server: functions of one flat vector of parameters.

`base.py` has the interfaces `Model` and `DifferentiableModel`. `linear_stack.py`, `torch.py`,
`recordwise.py`, `array.py`, `encoded.py` and `pretrained.py` implement them; `networks.py`,
`resnet.py` and `text.py` have the modules that a configuration names; `losses.py` has the tasks,
`optimizers.py` the steps.

Models, losses and optimisers may be added; `vertizo.testing.models` says what each must do. What
never changes: a method sees parameters, outputs and pullbacks, never a layer or a graph; a model's
parameters are views of its flat vector; under a guarantee a record's outputs and gradients depend
on no other record; and per-record gradients are measured on the very numbers that are summed.
"""
