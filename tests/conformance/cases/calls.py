"""Models that call models: what arrives there, what comes back, from where calls may be made."""

# ruff: noqa: E501 - a case reads best on one line

from ..request import ERROR_CODES, Case, Exchange, case, evaluate, infer, tensor

_PAIR = "[tensor(np.full((1, 16), 2, 'float32'), 'INPUT0'), tensor(np.ones((1, 16), 'float32'), 'INPUT1')]"
# How long to wait for a call that real Triton never answers.
STUCK_WAIT_S = 2.0


def _command(text: str) -> str:
    return f"bls(model_name='behave', inputs=[tensor(np.array(['{text}'], dtype=object), 'COMMAND')])"


def _stream(number: int) -> str:
    return f"bls(model_name='stream', inputs=[tensor(np.array([{number}], 'int32'), 'IN')])"


def _inspect(given: str) -> str:
    return f"outcome(bls(model_name='inspect', requested_output_names=['SEEN'], {given}).exec())"


def _echo(array: str, kind: str) -> str:
    return f"bls(model_name='identity_all', inputs=[tensor({array}, 'IN_{kind}')])"


def _async(expression: str) -> Exchange:
    return infer("evaluate_async", {"inputs": [tensor("EXPRESSION", "BYTES", [1], [expression])]})


_KINDS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "fp16", "fp32", "fp64")
_NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
_NUMBERS = {"none": 0, "one": 1, "three": 3, "exception": -9}
# Real Triton's iterators wait for ever when an error is not the only response.
_BROKEN_NUMBERS = {"error": -1, "error_then_two": -2, "raise_after_two": -10}

_ONE: dict[str, str] = {
    "no_names": f"outcome(bls(inputs={_PAIR}).exec())",
    "names_reversed": f"outcome(bls(inputs={_PAIR}, requested_output_names=['OUTPUT1', 'OUTPUT0']).exec())",
    "name_twice": f"outcome(bls(inputs={_PAIR}, requested_output_names=['OUTPUT1', 'OUTPUT1']).exec())",
    "inputs_reversed": f"outcome(bls(inputs={_PAIR}[::-1]).exec())",
    "input_twice": "outcome(bls(inputs=[tensor(np.ones((1, 16), 'float32'), 'INPUT0')] * 2).exec())",
    "input_more": f"outcome(bls(inputs={_PAIR} + [tensor(np.ones(1, 'float32'), 'X')]).exec())",
    "request_twice": f"(lambda r: [outcome(r.exec()), outcome(r.exec())])(bls(inputs={_PAIR}))",
    "many": f"sum(not bls(inputs={_PAIR}).exec().has_error() for _ in range(50))",
    "own_input_passed_on": "outcome(bls(model_name='echo_strings', inputs=[tensor(request.inputs()[0].as_numpy(), 'IN')]).exec())",
    "result_passed_on": "outcome(bls(model_name='identity_all', inputs=[tensor(bls(model_name='constant').exec().output_tensors()[0].as_numpy(), 'IN_INT32')]).exec())",
    "result_tensor": "(lambda t: (t.name(), t.is_cpu(), list(t.shape()), str(t.as_numpy().dtype)))(bls(model_name='constant').exec().output_tensors()[0])",
    "result_by_name": "pb_utils.get_output_tensor_by_name(bls(model_name='constant').exec(), 'VALUE').as_numpy().tolist()",
    "result_by_other_name": "pb_utils.get_output_tensor_by_name(bls(model_name='constant').exec(), 'NOSUCH')",
    "error_has_no_tensors": "bls(model_name='nosuch').exec().output_tensors()",
    "error_class": "type(bls(model_name='nosuch').exec().error()).__name__",
    "no_error": "bls(model_name='constant').exec().error()",
    "empty_tensor": f"outcome({_echo('np.zeros(0, np.float32)', 'FP32')}.exec())",
    "scalar": "outcome(bls(model_name='echo_fp32', inputs=[tensor(np.array(1, 'float32'), 'IN')]).exec())",
    "strided": "outcome(bls(model_name='echo_fp32', inputs=[tensor(np.arange(8, dtype='float32')[::2], 'IN')]).exec())",
    "strings": "outcome(bls(model_name='echo_strings', inputs=[tensor(np.array([b'a', b'', 'gr\\u00fcn'.encode()], dtype=object), 'IN')]).exec())",
    "string_of_bytes": "outcome(bls(model_name='echo_strings', inputs=[tensor(np.array([b'ab', b'c']), 'IN')]).exec())",
    "large": "(lambda a: bool((bls(model_name='echo_fp32', inputs=[tensor(a, 'IN')]).exec().output_tensors()[0].as_numpy() == a).all()))(np.arange(2**20, dtype='float32'))",
    "no_inputs": "outcome(bls(model_name='bare_config').exec())",
    "batch": "outcome(bls(inputs=[tensor(np.ones((8, 16), 'float32'), 'INPUT0'), tensor(np.ones((8, 16), 'float32'), 'INPUT1')], requested_output_names=['OUTPUT0']).exec())",
    "batch_mismatch": "outcome(bls(inputs=[tensor(np.ones((1, 16), 'float32'), 'INPUT0'), tensor(np.ones((2, 16), 'float32'), 'INPUT1')]).exec())",
    "wrong_shape_with_id": "outcome(bls(request_id='R', inputs=[tensor(np.ones((1, 5), 'float32'), 'INPUT0'), tensor(np.ones((1, 16), 'float32'), 'INPUT1')]).exec())",
    "id": _inspect("request_id='my id'"),
    "correlation": _inspect("correlation_id=42"),
    "correlation_text": _inspect("correlation_id='text'"),
    "flags": _inspect("flags=3"),
    "timeout": _inspect("timeout=1000"),
    "parameters": _inspect("parameters={'a': 1, 'b': True, 'c': 'x'}"),
    "preferred_memory": _inspect("preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)"),
    "version_zero": "outcome(bls(model_version=0).exec())",
    "version_latest": "outcome(bls(model_name='versions_all', model_version=-1).exec())",
    "empty_model": "outcome(bls(model_name='').exec())",
    "two_outputs": f"outcome({_command('both_reversed')}.exec())",
    "output_not_made": f"outcome({_command('no_outputs')}.exec())",
    "wrong_return": f"outcome({_command('tuple')}.exec())",
    "wrong_output_type": f"outcome({_command('wrong_dtype')}.exec())",
    "sender": f"outcome({_command('sender')}.exec())",
    "plain_by_iterator_many": f"[len([outcome(r) for r in bls(inputs={_PAIR}).exec(decoupled=True)]) for _ in range(5)]",
    "iterator_class": f"type({_stream(1)}.exec(decoupled=True)).__name__",
    "iterator_next": f"(lambda i: (outcome(next(i)), outcome(next(i))))({_stream(2)}.exec(decoupled=True))",
    "iterator_left": f"(lambda i: outcome(next(i)))({_stream(3)}.exec(decoupled=True))",
    "two_iterators": f"(lambda a, b: [[outcome(r) for r in b], [outcome(r) for r in a]])({_stream(2)}.exec(decoupled=True), {_stream(3)}.exec(decoupled=True))",
    "decoupled_by_exec": f"outcome({_stream(1)}.exec())",
    "thread": f"__import__('concurrent.futures').futures.ThreadPoolExecutor(1).submit(lambda: outcome(bls(inputs={_PAIR}).exec())).result()",
    "four_threads": f"list(__import__('concurrent.futures').futures.ThreadPoolExecutor(4).map(lambda _: outcome(bls(inputs={_PAIR}, requested_output_names=['OUTPUT0']).exec()), range(8)))",
    "async_exec_from_execute": f"asyncio.run(bls(inputs={_PAIR}).async_exec())",
    "chain": "outcome(bls(model_name='evaluate_async', inputs=[tensor(np.array(['outcome(bls(model_name=\"constant\"))'], dtype=object), 'EXPRESSION')]).exec())",
}  # fmt: skip

_ASYNC: dict[str, str] = {
    "plain": f"outcome(bls(inputs={_PAIR}))",
    "gather": f"gather(*(bls(inputs={_PAIR}, requested_output_names=['OUTPUT0']) for _ in range(4)))",
    "gather_mixed": f"gather(bls(model_name='constant'), bls(model_name='nosuch'), {_command('raise')})",
    "unknown_model": "outcome(bls(model_name='nosuch'))",
    "missing_input": "outcome(bls())",
    "model_exception": f"outcome({_command('raise')})",
    "decoupled_by_exec": f"outcome({_stream(1)})",
    "sync_exec": "[bls(model_name='constant').exec().has_error()]",
    "strings": "outcome(bls(model_name='echo_strings', inputs=[tensor(np.array([b'a', b''], dtype=object), 'IN')]))",
    "task": "asyncio.ensure_future(outcome(bls(model_name='constant')))",
    "awaitable_class": "type((lambda c: (c, c.close())[0])(bls(model_name='constant').async_exec())).__name__",
}

CASES: tuple[Case, ...] = (
    *(case(f"calls/{name}", evaluate(expression), server="calls") for name, expression in _ONE.items()),
    *(case(f"calls/code_{code}", evaluate(f"outcome({_command('code_' + code)}.exec())"), server="calls") for code in ERROR_CODES),
    *(
        case(
            f"calls/type_{kind}",
            evaluate(f"outcome({_echo(f'np.array([1, 0, 1], {_NUMPY.get(kind, kind)!r})', kind.upper())}.exec())"),
            server="calls",
        )
        for kind in _KINDS
    ),
    *(
        case(f"calls/stream_{name}", evaluate(f"[outcome(r) for r in {_stream(number)}.exec(decoupled=True)]"), server="calls")
        for name, number in _NUMBERS.items()
    ),
    *(case(f"calls/async_{name}", _async(expression), server="calls") for name, expression in _ASYNC.items()),
    *(case(f"calls/async_stream_{name}", _async(f"collect({_stream(number)})"), server="calls") for name, number in _NUMBERS.items()),
    case("calls/statistics_of_callee", evaluate(f"outcome(bls(inputs={_PAIR}).exec())"), stats="add_sub", server="calls"),
    case("calls/statistics_of_failure", evaluate("outcome(bls().exec())"), stats="add_sub", server="calls"),
    case("calls/statistics_of_stream", evaluate(f"[outcome(r) for r in {_stream(3)}.exec(decoupled=True)]"), stats="stream", server="calls"),
    # Last, because real Triton never answers.
    *(
        case(f"calls/stream_{name}", evaluate(f"[outcome(r) for r in {_stream(number)}.exec(decoupled=True)]"), server="calls")
        for name, number in _BROKEN_NUMBERS.items()
    ),
    case("calls/itself", infer("evaluate", {"inputs": [tensor("EXPRESSION", "BYTES", [1], [
        "outcome(bls(model_name='evaluate', inputs=[tensor(np.array(['1'], dtype=object), 'EXPRESSION')]).exec())",
    ])]}, timeout=STUCK_WAIT_S), server="calls"),
)  # fmt: skip
