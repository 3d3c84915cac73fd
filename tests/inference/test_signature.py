from stubserve.inference.signature import Signature
from stubserve.model_config.parse import parse_text
from tests.inference.models import echo, io, signature


def test_inputs_and_outputs() -> None:
    found = signature(
        "m",
        'max_batch_size: 4 output { name: "O" data_type: TYPE_STRING dims: [2] label_filename: "l.txt" }'
        + io("input", "A", "FP32", "2, 3")
        + io("input", "B", "BF16", "-1", "optional: true"),
    )
    assert (found.model, found.version, found.max_batch_size, found.decoupled) == ("m", 1, 4, False)
    assert list(found.inputs) == ["A", "B"]
    assert found.required_inputs == 1
    a, b, out = found.inputs["A"], found.inputs["B"], found.outputs["O"]
    assert (a.datatype, a.dims, a.elements, a.itemsize, a.optional, a.is_bytes) == (11, (2, 3), 6, 4, False, False)
    assert (b.datatype, b.dims, b.elements, b.itemsize, b.optional) == (14, (-1,), None, 2, True)
    assert (out.is_bytes, out.itemsize) == (True, 0)
    assert found.labels == {}


def test_an_empty_reshape_is_not_no_reshape() -> None:
    found = signature(
        "m", io("input", "A", "FP32", "1", "reshape: { shape: [] }") + io("output", "B", "FP32", "1", "reshape {}")
    )
    assert found.inputs["A"].reshape == ()
    assert found.outputs["B"].reshape == ()
    assert found.reshaped_outputs
    assert not echo("m", "FP32", "1").reshaped_outputs


def test_correlation_control() -> None:
    text = """sequence_batching {
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
      control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }"""
    assert Signature("m", 1, parse_text(text, "c")).correlation_control == ("ID", 13)
    assert echo("m", "FP32", "1").correlation_control is None


def test_decoupled() -> None:
    assert echo("m", "FP32", "1", "model_transaction_policy { decoupled: true }").decoupled
