import pytest

from stubserve.errors import Code, ServeError, raise_first
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig
from stubserve.sequences.problems import state_problems


def config_of(*states: str) -> ModelConfig:
    batching = " ".join(f"state {{ {state} }}" for state in states)
    return parse_text(
        f"""name: "m" max_batch_size: 4
            input {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }}
            output {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }}
            sequence_batching {{ control_input {{ name: "START" }} {batching} }}""",
        "c",
    )


def state(initial: str = "", name: str = "S", output: str = "T", rest: str = "", dims: str = "2, -1") -> str:
    return f'input_name: "{name}" output_name: "{output}" data_type: TYPE_FP32 dims: [ {dims} ] {initial} {rest}'


def initial(
    source: str = "zero_data: true", name: str = "z", kind: str = "FP32", dims: str = "2, 3", field: str = "S"
) -> str:
    return state(f'initial_state {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {source} }}', field)


@pytest.mark.parametrize(
    "states",
    [
        [],
        [state()],
        [initial()],
        [initial('data_file: "folder/file"', dims="2, 0")],
        [state(name="A", output="B"), state(name="C", output="D")],
        # As an output of the model it is one that clients may ask for.
        [state(output="Y")],
        [state(rest="use_same_buffer_for_input_output: true use_growable_memory: true")],
    ],
)
def test_accepted(states: list[str]) -> None:
    raise_first(state_problems(config_of(*states)))


GROWABLE = "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'S'."
DIM_COUNT = "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'S'."


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([state(name="")], "sequence batching state must specify 'input_name' for m"),
        ([state(output="")], "sequence batching state must specify 'output_name' for m"),
        ([state(), state(output="U")], "State input name 'S' specified more than once."),
        ([state(name="X")], "State input name 'X' specified more than once."),
        ([state(name="START")], "State input name 'START' specified more than once."),
        ([state(), state(name="U")], "State output name 'T' specified more than once."),
        (
            [state(output="Y").replace("FP32", "INT8")],
            "state output 'Y' has another data type than the output of that name for m",
        ),
        ([state().replace("TYPE_FP32", "TYPE_INVALID")], "state input 'S' must specify 'data_type'"),
        (
            [state(dims="0")],
            "state input 'S' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
        ),
        ([state(rest="use_growable_memory: true")], GROWABLE),
        (
            [initial() + "initial_state { } initial_state { }"],
            "initial_state field for state input 'S' must contain exactly one or zero element. Found '3' elements.",
        ),
        (
            [initial(kind="INT32")],
            "The data type used for 'initial_state' field of state 'S' does not match the state data type.",
        ),
        ([initial(name="")], "Field 'name' must be set when using initial_state for state input 'S'."),
        ([initial(dims="2")], f"{DIM_COUNT} 1 != 2"),
        ([initial(dims="2, -1")], "'initial_state' field for state input name 'S' contains variable dimensions."),
        ([initial(dims="2, -7")], "'initial_state' dim for input name 'S' must not be negative, got -7"),
        (
            [initial(dims="3, 1")],
            "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2",
        ),
        ([initial("")], "initial_state setting expects state'S' to have state_data set"),
        *(
            (
                [initial(f'data_file: "{file}"')],
                f"initial_state of state input 'S': '{file}' is not the name of a file in the model's folder "
                "'initial_state'",
            )
            for file in ("", "/etc/passwd", "../x", "a/../../x")
        ),
    ],
)
def test_refused(states: list[str], text: str) -> None:
    with pytest.raises(ServeError) as refused:
        raise_first(state_problems(config_of(*states)))
    assert (refused.value.code, refused.value.message) == (Code.INVALID_ARG, text)
    assert refused.value.path[:2] == ("sequence_batching", "state")
