import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError, raise_first
from stubserve.model_config.parse import parse_text
from stubserve.model_config.proto import ModelConfig, model_config_pb2
from stubserve.model_config.validate_io import io_problems

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 } '


def config_of(text: str) -> ModelConfig:
    return parse_text(f'name: "m" {text}', "c")


def refusal(config: ModelConfig) -> str:
    with pytest.raises(ServeError) as caught:
        raise_first(io_problems(config))
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message.endswith(" for m")
    return caught.value.message[: -len(" for m")]


@pytest.mark.parametrize("direction", ["input", "output"])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("data_type: TYPE_FP32 dims: 1", "must specify 'name'"),
        ('name: "X" dims: 1', "'X' must specify 'data_type'"),
        ('name: "X" data_type: TYPE_FP32', "'X' must specify 'dims'"),
        (
            'name: "X" data_type: TYPE_FP32 dims: [1, 0]',
            "'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: 1 reshape {}',
            "'X' cannot have empty reshape for non-batching model as scalar tensors are not supported",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: 1 reshape { shape: -2 }',
            "'X' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [2, 3] reshape { shape: 5 }',
            "'X' has different size for dims and reshape",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [-1, 2] }',
            "'X' has different size for dims and reshape",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [2, -1] reshape { shape: 2 }',
            "'X' has different size for dims and reshape",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [2, -1, -1] }',
            "'X' has different number of variable-size dimensions for dims and reshape",
        ),
    ],
)
def test_tensor_refused(direction: str, tensor: str, message: str) -> None:
    assert refusal(config_of(f"{direction} {{ {tensor} }}")) == f"model {direction} {message}"


TENSOR = 'name: "X" data_type: TYPE_FP32'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"input {{ {TENSOR} dims: 1 format: FORMAT_NHWC }}", "model input NHWC/NCHW require 3 dims"),
        (f"input {{ {TENSOR} dims: 1 format: FORMAT_NCHW }}", "model input NHWC/NCHW require 3 dims"),
        (
            f"output {{ {TENSOR} dims: 1 is_shape_tensor: true }}",
            "shape tensors are only supported for TensorRT platform",
        ),
        (
            f"input {{ {TENSOR} dims: 1 is_non_linear_format_io: true }}",
            "Non-linear IO format is only supported for the TensorRT platform",
        ),
        (
            f'backend: "tensorrt" platform: "tensorrt_plan" '
            f"output {{ {TENSOR} dims: 1 is_non_linear_format_io: true }}",
            "Non-linear IO format output requires 3 dims",
        ),
        (
            TENSORS + "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 }",
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
        ),
        (
            TENSORS + 'batch_input { source_input: "X" data_type: TYPE_INT64 }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
        ),
        (TENSORS + 'batch_input { source_input: "Y" data_type: TYPE_FP32 }', "unknown source input name 'Y'"),
        (
            TENSORS + 'batch_output { source_input: ["X", "X"] }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
        ),
        (TENSORS + 'batch_output { source_input: "Q" }', "unknown source input name 'Q'"),
        (TENSORS + 'batch_output { source_input: "X" target_name: "X" }', "unknown target output name 'X'"),
        (
            TENSORS + 'batch_output { source_input: "X" target_name: ["Y", "Y"] }',
            "target output name 'Y' can only be specified once",
        ),
    ],
)
def test_refused(text: str, message: str) -> None:
    assert refusal(config_of(text)) == message


def test_unknown_batch_kind_refused() -> None:
    config = config_of(TENSORS)
    config.batch_input.add(source_input=["X"]).kind = 77
    assert refusal(config) == "unknown batch input kind ''"


@pytest.mark.parametrize(
    "text",
    [
        "",
        TENSORS,
        f"max_batch_size: 1 input {{ {TENSOR} dims: 1 reshape {{}} }}",
        f"input {{ {TENSOR} dims: [2, 4, -1, 6] reshape {{ shape: [8, -1, 1, 6] }} }}",
        f"input {{ {TENSOR} dims: [3, 2, 2] format: FORMAT_NCHW }}",
        f'backend: "tensorrt" platform: "tensorrt_plan" input {{ {TENSOR} dims: 1 is_shape_tensor: true }}',
        TENSORS + 'batch_input { kind: BATCH_ITEM_SHAPE source_input: "X" target_name: "n" data_type: TYPE_INT32 }',
        TENSORS + 'batch_output { source_input: "X" target_name: "Y" }',
    ],
)
def test_accepted(text: str) -> None:
    raise_first(io_problems(config_of(text)))


def test_empty_reshape_needs_one_element() -> None:
    config = config_of(f"max_batch_size: 1 input {{ {TENSOR} dims: 2 reshape {{}} }}")
    assert refusal(config) == "model input 'X' has different size for dims and reshape"


DIM = st.integers(1, 5) | st.just(-1)


@settings(deadline=None)
@given(st.lists(DIM, min_size=1, max_size=5), st.lists(DIM, min_size=1, max_size=5))
def test_reshape_is_accepted_exactly_when_every_size_fits(dims: list[int], shape: list[int]) -> None:
    """Stated the long way round: put the same sizes for the variable dimensions on both sides and compare."""
    config = ModelConfig(name="m")
    tensor = config.input.add(name="X", data_type=model_config_pb2.TYPE_FP32, dims=dims)
    tensor.reshape.shape.extend(shape)

    def chunks(values: list[int]) -> list[int]:
        sizes = [1]
        for value in values:
            if value == -1:
                sizes.append(1)
            else:
                sizes[-1] *= value
        return sizes

    if chunks(dims) == chunks(shape):
        raise_first(io_problems(config))
    else:
        assert "different" in refusal(config)
