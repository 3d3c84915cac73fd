import pytest

from stubserve.ensembles.problems import ensemble_problems
from stubserve.errors import Code, ServeError, raise_first
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig


def step(inputs: str, outputs: str, model: str = "n") -> str:
    """A step whose maps go to the ensemble tensors named, one letter each."""
    maps = [f'input_map {{ key: "{tensor}" value: "{tensor}" }}' for tensor in inputs]
    maps += [f'output_map {{ key: "{tensor}" value: "{tensor}" }}' for tensor in outputs]
    return f'step {{ model_name: "{model}" {" ".join(maps)} }} '


def ensemble(steps: str, inputs: str = "A", outputs: str = "B", rest: str = 'platform: "ensemble"') -> ModelConfig:
    tensors = [f'input {{ name: "{tensor}" }}' for tensor in inputs]
    tensors += [f'output {{ name: "{tensor}" }}' for tensor in outputs]
    return parse_text(f'name: "e" {rest} {" ".join(tensors)} ensemble_scheduling {{ {steps} }}', "c")


@pytest.mark.parametrize(
    ("steps", "inputs", "outputs"),
    [
        (step("A", "B"), "A", "B"),
        (step("A", "C") + step("C", "B"), "A", "B"),
        (step("C", "B") + step("A", "C"), "A", "B"),
        (step("A", "CD") + step("C", "E") + step("DE", "B"), "A", "B"),
        # An output that another step reads as well.
        (step("A", "B") + step("B", "C"), "A", "BC"),
        (step("AB", "C"), "AB", "C"),
    ],
)
def test_accepted(steps: str, inputs: str, outputs: str) -> None:
    raise_first(ensemble_problems(ensemble(steps, inputs, outputs)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            ensemble("", rest='backend: "python"'),
            "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble",
        ),
        (
            ensemble("", rest='platform: "ensemble" instance_group {}'),
            "instance group should not be specified for ensemble 'e'",
        ),
        (
            ensemble("", rest='platform: "ensemble" optimization {}'),
            "optimization should not be specified for ensemble 'e'",
        ),
        (ensemble(""), "must specify 'step' for ensemble 'e'"),
        (ensemble(step("A", "B") + step("A", "C", "")), "must specify 'model_name' in step 1 of ensemble 'e'"),
        (ensemble(step("", "B")), "must specify 'input_map' in step 0 of ensemble 'e'"),
        (ensemble(step("A", "")), "must specify 'output_map' in step 0 of ensemble 'e'"),
        (
            ensemble(step("A", "B") + step("A", "B")),
            "ensemble tensor 'B' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (ensemble(step("A", "B"), "AQ"), "ensemble input 'Q' for ensemble e' is not used"),
        (ensemble(step("A", "B"), "A", "BQ"), "ensemble output 'Q' for ensemble e' is not used"),
        (
            ensemble(step("C", "B") + step("A", "D")),
            "output 'B' for ensemble 'e' is not written: at least one of its depending tensors, 'C', is not connected",
        ),
        (
            ensemble(step("Q", "C") + step("AC", "B")),
            "output 'B' for ensemble 'e' is not written: at least one of its depending tensors, 'Q', is not connected",
        ),
        (ensemble(step("AC", "B") + step("B", "C")), "output 'B' for ensemble 'e' is not written"),
        (ensemble(step("A", "BC")), "ensemble tensor 'C' is unused in ensemble 'e'"),
        (ensemble(step("A", "B") + step("Q", "C")), "ensemble tensor 'C' is unused in ensemble 'e'"),
    ],
)
def test_refused(config: ModelConfig, message: str) -> None:
    with pytest.raises(ServeError) as caught:
        raise_first(ensemble_problems(config))
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message == message
