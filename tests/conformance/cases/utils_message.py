"""pb_utils requests, responses, errors and constants, evaluated inside the stub."""

# ruff: noqa: E501 - a case reads best on one line

from ..request import Case, evaluations, outcome_class

_REQUEST = (
    "(lambda r: (r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(), "
    "sorted(r.requested_output_names()), [t.name() for t in r.inputs()]))({})"
)


CASES: tuple[Case, ...] = evaluations(
    "message",
    {
        "request_defaults": _REQUEST.format("bls()"),
        "request_filled": _REQUEST.format(
            "bls(request_id='r', correlation_id=5, flags=3, timeout=7, model_version=2, "
            "requested_output_names=['B', 'A'], inputs=[tensor(np.zeros(1))], parameters={'a': 1, 'b': True, 'c': 'x'})"
        ),
        "request_positional": _REQUEST.format("pb_utils.InferenceRequest('r', 9, [], ['O'], 'M')"),
        "request_string_correlation": "bls(correlation_id='text').correlation_id()",
        "request_bytes_names": _REQUEST.format("bls(model_name=b'm', request_id=b'r', requested_output_names=[b'O'])"),
        "request_tuple_names": _REQUEST.format("bls(requested_output_names=('O',), inputs=(tensor(np.zeros(1)),))"),
        "request_float_correlation": "bls(correlation_id=1.5)",
        "request_none_correlation": outcome_class("bls(correlation_id=None)"),
        "request_numpy_correlation": "bls(correlation_id=np.int64(5))",
        "request_negative_correlation": outcome_class("bls(correlation_id=-1)"),
        "request_none_tensor": "bls(inputs=[None])",
        "request_none_tensor_id": "bls(request_id='R', inputs=[None])",
        "request_text_tensor": outcome_class("bls(inputs=['x'])"),
        "request_none_inputs": outcome_class("bls(inputs=None)"),
        "request_empty_output": "bls(requested_output_names=[''])",
        "request_empty_output_id": "bls(request_id='R', requested_output_names=['A', ''])",
        "request_none_output": outcome_class("bls(requested_output_names=[None])"),
        "request_none_outputs": outcome_class("bls(requested_output_names=None)"),
        "request_none_model": outcome_class("bls(model_name=None)"),
        "request_none_id": outcome_class("bls(request_id=None)"),
        "request_none_flags": outcome_class("bls(flags=None)"),
        "request_negative_flags": outcome_class("bls(flags=-1)"),
        "request_float_timeout": outcome_class("bls(timeout=1.5)"),
        "request_negative_timeout": outcome_class("bls(timeout=-1)"),
        "request_text_version": outcome_class("bls(model_version='1')"),
        "request_numpy_version": outcome_class("bls(model_version=np.int64(1))"),
        "request_none_preferred": outcome_class("bls(preferred_memory=None)"),
        "request_no_model": outcome_class("pb_utils.InferenceRequest(inputs=[], requested_output_names=[])"),
        "request_no_inputs": outcome_class("pb_utils.InferenceRequest(model_name='M', requested_output_names=[])"),
        "request_no_outputs": outcome_class("pb_utils.InferenceRequest(model_name='M', inputs=[])"),
        "request_unknown_keyword": outcome_class("bls(nosuch=1)"),
        "request_empty_model": "bls(model_name='').request_id()",
        "request_parameters_list": "bls(parameters=[1])",
        "request_parameters_text": "bls(parameters='x')",
        "request_parameters_none": "bls(parameters=None).parameters()",
        "request_parameters_key": "bls(parameters={1: 'x'})",
        "request_parameters_float": "bls(parameters={'a': 1.5})",
        "request_parameters_none_value": "bls(parameters={'a': None})",
        "request_parameters_bytes_value": "bls(parameters={'a': b'x'})",
        "request_parameters_big": outcome_class("bls(parameters={'a': 2**70})"),
        "request_set_flags": "(lambda r: (r.set_flags(3), r.flags())[1])(bls())",
        "request_set_flags_negative": outcome_class("bls().set_flags(-1)"),
        "request_correlation_default": "request.correlation_id()",
        "request_parameters_default": "request.parameters()",
        "request_names_default": "request.requested_output_names()",
        "request_cancelled": "request.is_cancelled()",
        "request_sender_is_same": "request.get_response_sender() is request.get_response_sender()",
        "request_trace": "request.trace().get_context()",
        "request_release_flags_bad": "request.set_release_flags(9)",
        "response_defaults": "(lambda r: (r.output_tensors(), r.has_error(), r.error(), r.parameters()))(pb_utils.InferenceResponse())",
        "response_error": "(lambda r: (r.output_tensors(), r.has_error(), r.error().message(), r.parameters()))"
        "(pb_utils.InferenceResponse(error=pb_utils.TritonError('e')))",
        "response_error_and_tensors": "len(pb_utils.InferenceResponse([tensor(np.zeros(1))], pb_utils.TritonError('e')).output_tensors())",
        "response_tuple": "len(pb_utils.InferenceResponse((tensor(np.zeros(1)),)).output_tensors())",
        "response_none_tensor": "pb_utils.InferenceResponse([None])",
        "response_none": outcome_class("pb_utils.InferenceResponse(None)"),
        "response_tensor": outcome_class("pb_utils.InferenceResponse(tensor(np.zeros(1)))"),
        "response_text_error": outcome_class("pb_utils.InferenceResponse(error='text')"),
        "response_parameters": "pb_utils.InferenceResponse([], parameters={'b': True, 'a': 'x', 'n': 5}).parameters()",
        "response_parameters_list": "pb_utils.InferenceResponse([], parameters=[1])",
        "response_parameters_key": "pb_utils.InferenceResponse([], parameters={2: 'x'})",
        "response_parameters_value": "pb_utils.InferenceResponse([], parameters={'a': []})",
        "error_defaults": "(lambda e: (e.message(), e.code() == pb_utils.TritonError.INTERNAL))(pb_utils.TritonError('m'))",
        "error_keyword": "pb_utils.TritonError(message='m', code=pb_utils.TritonError.NOT_FOUND).code() == pb_utils.TritonError.NOT_FOUND",
        "error_codes": "[int(getattr(pb_utils.TritonError, n)) for n in ('UNKNOWN', 'INTERNAL', 'NOT_FOUND', 'INVALID_ARG', "
        "'UNAVAILABLE', 'UNSUPPORTED', 'ALREADY_EXISTS', 'CANCELLED')]",
        "error_code_repr": "repr(pb_utils.TritonError.NOT_FOUND)",
        "error_code_text": "str(pb_utils.TritonError.NOT_FOUND)",
        "error_integer_code": outcome_class("pb_utils.TritonError('m', 2)"),
        "error_none_message": outcome_class("pb_utils.TritonError(None)"),
        "error_no_message": outcome_class("pb_utils.TritonError()"),
        "error_is_exception": "issubclass(pb_utils.TritonError, BaseException)",
        "exception_is_exception": "issubclass(pb_utils.TritonModelException, Exception)",
        "exception_text": "str(pb_utils.TritonModelException('text'))",
        "exception_module": "pb_utils.TritonModelException.__name__",
        "constants": "[pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, "
        "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL]",
        "release_constants": "[pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE]",
        "memory_constants": "[int(pb_utils.TRITONSERVER_MEMORY_GPU), int(pb_utils.TRITONSERVER_MEMORY_CPU)]",
        "preferred_memory": "type(pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)).__name__",
        "preferred_memory_integer": outcome_class("pb_utils.PreferredMemory(1)"),
    },
) + evaluations(
    "message",
    {
        "bls_cancelled": "bls().is_cancelled()",
        "bls_sender_send": "bls().get_response_sender().send(pb_utils.InferenceResponse([]))",
        "exec_add_sub": "outcome(bls(inputs=[tensor(np.full((1, 16), 2, 'float32'), 'INPUT0'), "
        "tensor(np.ones((1, 16), 'float32'), 'INPUT1')], requested_output_names=['OUTPUT1']).exec())",
        "exec_missing_input": "outcome(bls().exec())",
        "exec_unknown_model": "outcome(bls(model_name='nosuch').exec())",
        "exec_unknown_version": "outcome(bls(model_version=7).exec())",
        "exec_unknown_output": "outcome(bls(requested_output_names=['X'], inputs=[tensor(np.ones((1, 16), 'float32'), 'INPUT0'), "
        "tensor(np.ones((1, 16), 'float32'), 'INPUT1')]).exec())",
        "exec_wrong_type": "outcome(bls(inputs=[tensor(np.ones((1, 16)), 'INPUT0'), tensor(np.ones((1, 16)), 'INPUT1')]).exec())",
        "exec_decoupled": "outcome(bls(model_name='decoupled', inputs=[tensor(np.ones(1, 'float32'), 'IN')]).exec())",
        "exec_model_error": "outcome(bls(model_name='behave', inputs=[tensor(np.array(['code_NOT_FOUND'], dtype=object), 'COMMAND')]).exec())",
        "exec_model_exception": "outcome(bls(model_name='behave', inputs=[tensor(np.array(['raise'], dtype=object), 'COMMAND')]).exec())",
        "exec_parameters": "outcome(bls(model_name='inspect', requested_output_names=['SEEN'], parameters={'k': 1}, request_id='inner').exec())",
        "exec_constant": "outcome(bls(model_name='constant').exec())",
        "exec_version": "outcome(bls(model_name='versions_all', model_version=2).exec())",
        "exec_iterator": "[outcome(r) for r in bls(model_name='constant').exec(decoupled=True)]",
        "exec_iterator_again": "(lambda i: ([outcome(r) for r in i], [outcome(r) for r in i], class_of(lambda: next(i))))(bls(model_name='constant').exec(decoupled=True))",
        "exec_iterator_error": "[outcome(r) for r in bls(model_name='nosuch').exec(decoupled=True)]",
        "exec_iterator_cancel": "(lambda i: (i.cancel(), len(list(i)), i.cancel()))(bls(model_name='constant').exec(decoupled=True))",
        "exec_result_parameters": "bls(model_name='constant').exec().parameters()",
        "exec_error_parameters": "bls(model_name='nosuch').exec().parameters()",
        "exec_wrong_shape": "outcome(bls(inputs=[tensor(np.ones((1, 5), 'float32'), 'INPUT0'), tensor(np.ones((1, 16), 'float32'), 'INPUT1')]).exec())",
        "exec_batch_too_large": "outcome(bls(inputs=[tensor(np.ones((99, 16), 'float32'), 'INPUT0'), tensor(np.ones((99, 16), 'float32'), 'INPUT1')]).exec())",
        "exec_unknown_input": "outcome(bls(inputs=[tensor(np.ones((1, 16), 'float32'), 'X'), tensor(np.ones((1, 16), 'float32'), 'INPUT1')]).exec())",
        "exec_text_decoupled": outcome_class("bls(model_name='constant').exec(decoupled='yes')"),
        "async_exec_no_loop": "bls().async_exec()",
    },
    # Real Triton does not survive some of these.
    server="calls",
)
