"""Does what COMMAND says: every way a model can answer, fail, or break the contract of execute."""

import numpy as np
import triton_python_backend_utils as pb_utils


def text(name, value):
    return pb_utils.Tensor(name, np.array([value], dtype=object))


def fine(value="fine"):
    return pb_utils.InferenceResponse([text("RESULT", value)])


def deep(levels):
    if levels == 0:
        raise RuntimeError("deep down")
    deep(levels - 1)


class OwnError(Exception):
    pass


class Silent(Exception):
    def __str__(self):
        return ""


def command_of(request):
    return pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().reshape(-1)[0].decode()


def obey(command, request):
    """What execute returns for one request; raises where the command says so."""
    if command == "raise":
        raise ValueError("the model says no")
    if command == "raise_model_exception":
        raise pb_utils.TritonModelException("a model exception")
    if command == "raise_own":
        raise OwnError("own error class", 42)
    if command == "raise_silent":
        raise Silent
    if command == "raise_unicode":
        raise ValueError('gr\u00fc\u00df "quoted"\nsecond line')
    if command == "raise_key":
        return [{}["missing key"]]
    if command == "raise_zero":
        return [1 // 0]
    if command == "raise_name":
        return [undefined_name]  # noqa: F821
    if command == "raise_deep":
        deep(3)
    if command == "raise_chained":
        try:
            deep(0)
        except RuntimeError as error:
            raise ValueError("outer") from error
    if command == "raise_assert":
        raise AssertionError
    if command == "raise_import":
        import no_such_module_anywhere  # noqa: F401
    if command == "stop_iteration":
        next(iter(()))
    if command == "tuple":
        return (fine(),)
    if command == "string":
        return "text"
    if command == "single":
        return fine()
    if command == "dict":
        return {}
    if command == "number":
        return 5
    if command == "empty_list":
        return []
    if command == "two":
        return [fine(), fine()]
    if command == "none":
        return None
    if command == "none_element":
        return [None]
    if command == "string_element":
        return ["text"]
    if command == "tensor_element":
        return [text("RESULT", "bare tensor")]
    if command == "error_element":
        return [pb_utils.TritonError("bare error")]
    if command.startswith("code_"):
        error = pb_utils.TritonError("an error of the model", getattr(pb_utils.TritonError, command[5:]))
        return [pb_utils.InferenceResponse(error=error)]
    if command == "error_default":
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("no code given"))]
    if command == "error_empty":
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(""))]
    if command == "error_json":
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError('say "hi"\n\ttab \\ gr\u00fcn \x01'))]
    if command == "error_and_tensors":
        error = pb_utils.TritonError("error wins")
        return [pb_utils.InferenceResponse([text("RESULT", "lost")], error)]
    if command == "no_outputs":
        return [pb_utils.InferenceResponse([])]
    if command == "unknown_output":
        return [pb_utils.InferenceResponse([text("RESULT", "kept"), text("SURPRISE", "dropped?")])]
    if command == "other_output":
        return [pb_utils.InferenceResponse([text("EXTRA", "only the other")])]
    if command == "both_reversed":
        return [pb_utils.InferenceResponse([text("EXTRA", "second"), text("RESULT", "first")])]
    if command == "both":
        return [pb_utils.InferenceResponse([text("RESULT", "first"), text("EXTRA", "second")])]
    if command == "twice":
        return [pb_utils.InferenceResponse([text("RESULT", "one"), text("RESULT", "two")])]
    if command == "wrong_dtype":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([1, 2, 3], dtype=np.int16))])]
    if command == "wrong_shape":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([["a"], ["b"]], dtype=object))])]
    if command == "scalar":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array(7, dtype=np.int32))])]
    if command == "empty_tensor":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.zeros((0, 3), dtype=np.float32))])]
    if command == "empty_bytes":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([], dtype=object))])]
    if command == "parameters":
        given = {"text": "value", "number": 12, "yes": True, "negative": -3}
        return [pb_utils.InferenceResponse([text("RESULT", "with parameters")], parameters=given)]
    if command == "parameters_empty":
        return [pb_utils.InferenceResponse([text("RESULT", "empty")], parameters={})]
    if command == "numbers_as_objects":
        values = np.array([1, 2.5, None, "text", b"bytes"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", values)])]
    if command == "bytes_dtype":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([b"ab", b"c"]))])]
    if command == "not_utf8":
        return [pb_utils.InferenceResponse([text("RESULT", b"\xff\xfe")])]
    if command == "unicode":
        return [pb_utils.InferenceResponse([text("RESULT", 'gr\u00fcn \u2713 "q" \\ \n \x01 \U0001f600')])]
    if command == "specials":
        values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-30, 1e30, 0.1, 16777216.0], dtype=np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", values)])]
    if command == "doubles":
        values = np.array([0.1, 1e300, 1e-300, 1 / 3, 123456789012345680.0, 5e-324, 1e21, 1e20], dtype=np.float64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", values)])]
    if command == "integers":
        values = np.array([-(2**63), 2**63 - 1, 0, -1], dtype=np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", values)])]
    if command == "unsigned":
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([2**64 - 1, 0], dtype=np.uint64))])]
    if command == "strided":
        values = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", values)])]
    if command == "sender":
        request.get_response_sender().send(fine("through the sender"), flags=1)
        return None
    if command == "sender_none_element":
        request.get_response_sender().send(fine("through the sender"), flags=1)
        return [None]
    if command == "sender_twice":
        sender = request.get_response_sender()
        sender.send(fine("once"), flags=1)
        sender.send(fine("twice"), flags=1)
        return None
    if command == "sender_then_return":
        request.get_response_sender().send(fine("sent"), flags=1)
        return [fine("returned")]
    if command == "sender_sent_then_raise":
        request.get_response_sender().send(fine("sent"))
        raise ValueError("after what was sent")
    if command == "sender_sent_then_return":
        request.get_response_sender().send(fine("sent"))
        return [fine("returned")]
    if command == "sender_two_steps":
        sender = request.get_response_sender()
        sender.send(fine("first, then the flag"))
        sender.send(flags=1)
        return None
    if command == "sender_flag_only":
        request.get_response_sender().send(flags=1)
        return None
    if command == "sender_bad_flag":
        request.get_response_sender().send(fine(), flags=7)
        return None
    if command == "sender_nothing":
        request.get_response_sender().send()
        return None
    if command == "sender_error":
        error = pb_utils.InferenceResponse(error=pb_utils.TritonError("sent error", pb_utils.TritonError.NOT_FOUND))
        request.get_response_sender().send(error, flags=1)
        return None
    if command == "sender_raise":
        request.get_response_sender().send(fine("before the exception"), flags=1)
        raise ValueError("after the answer")
    return [fine("unknown command " + command)]


class TritonPythonModel:
    def execute(self, requests):
        return obey(command_of(requests[0]), requests[0])
