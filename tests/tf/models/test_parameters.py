"""What is counted as parameters: the trainable numbers that the losses reach."""

import contract
import pytest

CASES = [
    # method, settings, the parts that could be trained and that no loss reaches
    pytest.param("mural", {}, set(), marks=pytest.mark.slow),
    pytest.param("mural", {"shared_head": True}, set(), marks=pytest.mark.slow),
    pytest.param("globetrotter", {}, {"log_temperature"}, marks=pytest.mark.slow),
    ("mule", {"method__language_weight": 0.0}, {"language_classifier"}),
]


def size(variables):
    return sum(variable.shape.num_elements() for variable in variables)


@pytest.mark.parametrize("method, settings, rest", CASES)
def test_parameters_are_those_that_the_losses_reach(method, settings, rest):
    config = contract.toy_config(method, **settings)
    model = contract.build(config)
    assert model.step.trained_parameters is None
    model.train_step(contract.batch_of(model, config))
    parts = {**model.weights_by_part(), "language_classifier": getattr(model, "language_classifier", None)}
    unreached = [variable for name in rest for variable in getattr(parts[name], "trainable_variables", [parts[name]])]
    assert len(unreached) >= len(rest)
    assert model.step.trained_parameters == size(model.trainable_variables) - size(unreached)
