# ruff: noqa: E501  a table of texts as they are
"""What Triton 2.51 (numpy 1.26, Python 3.11) answers to expressions about the public module.

Recorded by evaluating HELPERS and each expression inside a model of the real server. Of a TypeError only the first
line counts: the rest spells out C++ signatures.
"""

HELPERS = """
import json, sys, weakref

def request(**given):
    needed = dict(inputs=[], requested_output_names=[], model_name="m")
    return pb_utils.InferenceRequest(**dict(needed, **given))

def tensor(array):
    return pb_utils.Tensor("T", array)

def config(**given):
    base = dict(name="M", max_batch_size=0, input=[], output=[])
    return pb_utils.ModelConfig(json.dumps(dict(base, **given)))

def after(model_config, method, *arguments):
    getattr(model_config, method)(*arguments)
    return {key: value for key, value in model_config.as_dict().items() if key != "name" and value not in (0, [])}

def io(**given):
    return dict(dict(name="a", data_type="TYPE_FP32", dims=[1]), **given)

def counts(t):
    before = sys.getrefcount(t)
    first = t.to_dlpack()
    second = t.__dlpack__(stream=None)
    during = sys.getrefcount(t)
    del first, second
    return during - before, sys.getrefcount(t) - before

def same(array):
    given = tensor(array)
    return given.as_numpy() is array, given.as_numpy().flags.c_contiguous, given.as_numpy() is given.as_numpy()
"""

ANSWERS = [
    ("pb_utils.TritonError.INTERNAL", "<__ErrorCode.INTERNAL: 1>"),
    ("str(pb_utils.TritonError.CANCELLED)", "'__ErrorCode.CANCELLED'"),
    (
        '[int(getattr(pb_utils.TritonError, n)) for n in ("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED")]',
        "[0, 1, 2, 3, 4, 5, 6, 7]",
    ),
    (
        "pb_utils.TritonError.NOT_FOUND == 2, pb_utils.TritonError.NOT_FOUND.name, pb_utils.TritonError.NOT_FOUND.value",
        "(True, 'NOT_FOUND', 2)",
    ),
    ('pb_utils.TritonError("x").code()', "<__ErrorCode.INTERNAL: 1>"),
    ('pb_utils.TritonError(message="x", code=pb_utils.TritonError.NOT_FOUND).code()', "<__ErrorCode.NOT_FOUND: 2>"),
    ('pb_utils.TritonError(b"x").message()', "'x'"),
    (
        'pb_utils.TritonError("x", 3)',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.TritonError(None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ('pb_utils.TritonModelException("abc")', "TritonModelException('abc')"),
    ('str(pb_utils.TritonModelException("abc"))', "'abc'"),
    ("issubclass(pb_utils.TritonModelException, Exception)", "True"),
    (
        "pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU",
        "(<MemoryType.TRITONSERVER_MEMORY_GPU: 0>, <MemoryType.TRITONSERVER_MEMORY_CPU: 1>)",
    ),
    ("c.MemoryType.TRITONSERVER_MEMORY_CPU == pb_utils.TRITONSERVER_MEMORY_CPU", "True"),
    (
        "c.COUNTER, c.GAUGE, c.HISTOGRAM, pb_utils.MetricFamily.GAUGE",
        "(<MetricKind.COUNTER: 0>, <MetricKind.GAUGE: 1>, <MetricKind.HISTOGRAM: 2>, <MetricKind.GAUGE: 1>)",
    ),
    (
        "pb_utils.PreferredMemory(1)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "type(pb_utils.PreferredMemory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=2)).__name__",
        "'PreferredMemory'",
    ),
    (
        "pb_utils.Logger.INFO, pb_utils.Logger.WARNING, pb_utils.Logger.ERROR, pb_utils.Logger.VERBOSE",
        "(<LogLevel.INFO: 0>, <LogLevel.WARNING: 1>, <LogLevel.ERROR: 2>, <LogLevel.VERBOSE: 3>)",
    ),
    ("pb_utils.Logger.LogLevel.INFO is pb_utils.Logger.INFO", "True"),
    (
        'pb_utils.Logger.log("x", 1)',
        "TypeError: log(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.Logger.log("x", None)',
        "TypeError: log(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.Logger.log(None)",
        "TypeError: log(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.Logger.log_info(3)",
        "TypeError: log_info(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.Logger.log_warn(None)",
        "TypeError: log_warn(): incompatible function arguments. The following argument types are supported:",
    ),
    ("pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END", "(1, 2)"),
    (
        "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL, pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL, pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
        "(1, 1, 2)",
    ),
    ('pb_utils.Tensor("", np.zeros(2))', "TritonModelException: Tensor name cannot be an empty string."),
    ('pb_utils.Tensor("", np.array(["x"]))', "TritonModelException: Tensor name cannot be an empty string."),
    (
        'pb_utils.Tensor("", [1])',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.Tensor("a", [1])',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.Tensor("a", None)',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.Tensor("a", np.float32(2))',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.Tensor(None, np.zeros(2))",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.Tensor("\\ud800", np.zeros(2))',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ('pb_utils.Tensor(b"a", np.zeros(2)).name()', "'a'"),
    ('pb_utils.Tensor(np.str_("a"), np.zeros(2)).name()', "'a'"),
    ('pb_utils.Tensor("é", np.zeros(2)).name()', "'é'"),
    ('pb_utils.Tensor("a\\0b", np.zeros(2)).name()', "'a\\x00b'"),
    ("tensor(np.array([1j]))", "TritonModelException: NumPy dtype is not supported."),
    ('tensor(np.array([1], ">i4"))', "TritonModelException: NumPy dtype is not supported."),
    ('tensor(np.array([1], "M8[s]"))', "TritonModelException: NumPy dtype is not supported."),
    ('tensor(np.zeros(2, "i4,i4"))', "TritonModelException: NumPy dtype is not supported."),
    ("tensor(np.zeros(2, np.longdouble))", "TritonModelException: NumPy dtype is not supported."),
    ("tensor(np.zeros(2, np.longlong)).as_numpy().dtype", "dtype('int64')"),
    (
        '[tensor(np.zeros(1, d)).as_numpy().dtype.str for d in "? b B h H i I q Q e f d O S3".split()]',
        "['|b1', '|i1', '|u1', '<i2', '<u2', '<i4', '<u4', '<i8', '<u8', '<f2', '<f4', '<f8', '|O', '|S3']",
    ),
    ("tensor(np.array(2.5)).shape(), tensor(np.array(2.5)).as_numpy()", "([], array(2.5))"),
    ("tensor(np.zeros((2, 3))).shape()", "[2, 3]"),
    (
        'tensor(np.zeros((2, 0))).shape(), tensor(np.zeros((2, 0), dtype=object)).shape(), tensor(np.zeros((0, 3), "S3")).shape()',
        "([2, 0], [2, 0], [0, 3])",
    ),
    (
        'tensor(np.array([None, 1, 2.5, "é", b"b", bytearray(b"q")], dtype=object)).as_numpy().tolist()',
        "[None, 1, 2.5, 'é', b'b', bytearray(b'q')]",
    ),
    (
        'tensor(np.array(["\\ud800"], dtype=object))',
        "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
    ),
    ('tensor(np.array([b"x", b"yy\\0"])).as_numpy().tolist()', "[b'x', b'yy']"),
    ("tensor(np.zeros(2)).is_cpu()", "True"),
    ("same(np.zeros((2, 3)))", "(True, True, True)"),
    ("same(np.zeros((2, 3)).T)", "(False, True, True)"),
    ("same(np.zeros(4)[::2])", "(False, True, True)"),
    ('same(np.array([b"x"], dtype=object))', "(True, True, True)"),
    ('same(np.array([b"x"]))', "(True, True, True)"),
    ('same(np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object).T)', "(False, True, True)"),
    ("tensor(np.zeros(1)) == 3", "False"),
    ('hasattr(tensor(np.zeros(1)), "__dict__")', "False"),
    ("weakref.ref(tensor(np.zeros(1)))()", "None"),
    ("tensor(np.zeros(2)).__dlpack_device__()", "(1, 0)"),
    ('tensor(np.array([b"a"], dtype=object)).__dlpack_device__()', "(1, 0)"),
    (
        'tensor(np.array([b"a"], dtype=object)).to_dlpack()',
        "TritonModelException: DLPack does not have support for string tensors.",
    ),
    ("type(tensor(np.zeros(2)).to_dlpack()).__name__", "'PyCapsule'"),
    ("np.from_dlpack(tensor(np.arange(3)))", "array([0, 1, 2])"),
    ("np.from_dlpack(tensor(np.array([True, False])))", "array([ True, False])"),
    ("counts(tensor(np.arange(3)))", "(2, 0)"),
    (
        'pb_utils.Tensor.from_dlpack("x", tensor(np.arange(6).reshape(2, 3)).to_dlpack()).as_numpy()',
        "array([[0, 1, 2],\n       [3, 4, 5]])",
    ),
    ('pb_utils.Tensor.from_dlpack("x", tensor(np.arange(6).reshape(2, 3))).shape()', "[2, 3]"),
    ('pb_utils.Tensor.from_dlpack("x", tensor(np.array([True]))).as_numpy()', "array([ True])"),
    ('pb_utils.Tensor.from_dlpack(b"x", tensor(np.arange(3))).name()', "'x'"),
    (
        'pb_utils.Tensor.from_dlpack("", tensor(np.arange(3)))',
        "TritonModelException: Tensor name cannot be an empty string.",
    ),
    (
        'pb_utils.Tensor.from_dlpack("x", None)',
        "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and `__dlpack_device__` attributes",
    ),
    (
        'pb_utils.Tensor.from_dlpack("x", 3)',
        "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and `__dlpack_device__` attributes",
    ),
    (
        "pb_utils.Tensor.from_dlpack(None, tensor(np.arange(3)))",
        "TypeError: from_dlpack(): incompatible function arguments. The following argument types are supported:",
    ),
    ('request(request_id="r").request_id(), request(request_id=b"x").request_id()', "('r', 'x')"),
    (
        "request().inputs(), request().requested_output_names(), request().correlation_id(), request().flags(), request().timeout(), request().parameters(), request().request_id()",
        "([], set(), 0, 0, 0, '{}', '')",
    ),
    (
        "request(request_id=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(request_id=1)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("request(correlation_id=np.int64(1))", "TritonModelException: Correlation ID must be integer or string"),
    ("request(correlation_id=True).correlation_id()", "1"),
    ('request(correlation_id="x").correlation_id()', "'x'"),
    ('request(correlation_id="").correlation_id()', "''"),
    ('request(correlation_id=b"x")', "TritonModelException: Correlation ID must be integer or string"),
    ("request(correlation_id=2**64 - 1).correlation_id()", "18446744073709551615"),
    ("request(correlation_id=1.5)", "TritonModelException: Correlation ID must be integer or string"),
    (
        "request(correlation_id=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(inputs=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'request(inputs=[None], request_id="R")',
        "TritonModelException: Input tensor for request with id 'R' and model name 'm' should not be empty.",
    ),
    (
        "request(inputs=[3])",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("request(inputs=(tensor(np.zeros(1)),)).inputs()[0].name()", "'T'"),
    (
        "request(inputs=3)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(inputs={})",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'request(inputs="")',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(inputs=iter([]))",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(requested_output_names=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(requested_output_names=[None])",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'request(requested_output_names=[""], request_id="R")',
        "TritonModelException: Requested output name for request with id 'R' and model name 'm' should not be empty.",
    ),
    ('sorted(request(requested_output_names=["b", "a", b"a"]).requested_output_names())', "['a', 'b']"),
    (
        'request(requested_output_names="ab")',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'request(requested_output_names=b"ab")',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ('request(model_name=b"m").request_id()', "''"),
    (
        "request(model_name=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(model_version=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("request(model_version=np.int64(3)).request_id()", "''"),
    (
        "request(model_version=1.0)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'request(model_version="1")',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(model_version=2**63)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(flags=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(flags=-1)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("request(flags=5).flags()", "5"),
    (
        "request(timeout=-1)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(timeout=1.0)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(timeout=2**64)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("request(timeout=2**63).timeout(), request(timeout=np.int32(5)).timeout()", "(9223372036854775808, 5)"),
    (
        "request(preferred_memory=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(preferred_memory=1)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "request(trace=None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "type(request(trace=request().trace()).trace()).__name__, request().trace().get_context()",
        "('InferenceTrace', None)",
    ),
    ("request(parameters={}).parameters(), request(parameters=None).parameters()", "('{}', '{}')"),
    (
        "request(parameters={1: 2})",
        "TritonModelException: Expect parameters keys to have type str, found type <class 'int'>",
    ),
    (
        'request(parameters={b"b": 1})',
        "TritonModelException: Expect parameters keys to have type str, found type <class 'bytes'>",
    ),
    (
        'request(parameters={"a": None})',
        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
    ),
    (
        'request(parameters={"a": np.int64(1)})',
        "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'numpy.int64'>",
    ),
    (
        'request(parameters={"b": 1, "a": True, "c": "é\\"\\n/\\t\\x01", "d": -5, "e": 2**62}).parameters()',
        '\'{"b": 1, "a": true, "c": "\\\\u00e9\\\\"\\\\n/\\\\t\\\\u0001", "d": -5, "e": 4611686018427387904}\'',
    ),
    (
        "pb_utils.InferenceRequest()",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ('pb_utils.InferenceRequest("i", 5, [], ["o"], "m").request_id()', "'i'"),
    (
        "pb_utils.InferenceRequest(inputs=[], requested_output_names=[])",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    ("[(r.set_flags(3), r.flags()) for r in [request()]]", "[(None, 3)]"),
    ("[(r.set_flags(np.int32(2)), r.flags()) for r in [request()]]", "[(None, 2)]"),
    ("[(r.set_flags(True), r.flags()) for r in [request()]]", "[(None, 1)]"),
    (
        "request().set_flags(-1)",
        "TypeError: set_flags(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "request().set_flags(1.0)",
        "TypeError: set_flags(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "request().set_flags(2**32)",
        "TypeError: set_flags(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "request().set_flags(None)",
        "TypeError: set_flags(): incompatible function arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.InferenceResponse().output_tensors(), pb_utils.InferenceResponse().has_error(), pb_utils.InferenceResponse().error()",
        "([], False, None)",
    ),
    (
        "pb_utils.InferenceResponse(None)",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        "pb_utils.InferenceResponse([None])",
        "TritonModelException: Output tensor for inference response should not be empty.",
    ),
    (
        "pb_utils.InferenceResponse([3])",
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.InferenceResponse([], "err")',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.InferenceResponse([], pb_utils.TritonModelException("e"))',
        "TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:",
    ),
    (
        'pb_utils.InferenceResponse([None], pb_utils.TritonError("e"))',
        "TritonModelException: Output tensor for inference response should not be empty.",
    ),
    ('pb_utils.InferenceResponse([], pb_utils.TritonError("e")).error().message()', "'e'"),
    ('pb_utils.InferenceResponse(error=pb_utils.TritonError("e")).has_error()', "True"),
    ("pb_utils.InferenceResponse(output_tensors=(tensor(np.zeros(1)),), error=None).output_tensors()[0].name()", "'T'"),
    (
        "[(t is r.output_tensors()[0], r.output_tensors() is r.output_tensors()) for t in [tensor(np.zeros(1))] for r in [pb_utils.InferenceResponse([t])]]",
        "[(True, False)]",
    ),
    ('[e is pb_utils.InferenceResponse(error=e).error() for e in [pb_utils.TritonError("e")]]', "[True]"),
    ('pb_utils.triton_string_to_numpy("TYPE_BF16")', "KeyError: 'TYPE_BF16'"),
    (
        'sorted(pb_utils.TRITON_STRING_TO_NUMPY), pb_utils.TRITON_STRING_TO_NUMPY["TYPE_BOOL"] is bool',
        "(['TYPE_BOOL', 'TYPE_FP16', 'TYPE_FP32', 'TYPE_FP64', 'TYPE_INT16', 'TYPE_INT32', 'TYPE_INT64', 'TYPE_INT8', 'TYPE_STRING', 'TYPE_UINT16', 'TYPE_UINT32', 'TYPE_UINT64', 'TYPE_UINT8'], True)",
    ),
    (
        '[pb_utils.triton_string_to_numpy(n) is t for n, t in (("TYPE_INT8", np.int8), ("TYPE_FP16", np.float16), ("TYPE_STRING", np.object_), ("TYPE_UINT64", np.uint64))]',
        "[True, True, True, True]",
    ),
    (
        "[pb_utils.triton_to_numpy_type(n) is t for n, t in enumerate([None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.object_, None])]",
        "[True, True, True, True, True, True, True, True, True, True, True, True, True, True, True]",
    ),
    (
        '[pb_utils.numpy_to_triton_type(t) for t in (np.bool_, bool, np.uint8, np.float32, np.dtype("f4"), np.object_, np.bytes_, object, int, np.int64, None)]',
        "[1, None, 2, 11, 11, 13, 13, None, None, 9, None]",
    ),
    (
        "pb_utils.serialize_byte_tensor(np.array([], dtype=object)), pb_utils.serialize_byte_tensor(np.zeros(0))",
        "((), ())",
    ),
    (
        'pb_utils.serialize_byte_tensor(np.array([b"a", "é", None, 1, 2.5, bytearray(b"q")], dtype=object))',
        "b\"\\x01\\x00\\x00\\x00a\\x02\\x00\\x00\\x00\\xc3\\xa9\\x04\\x00\\x00\\x00None\\x01\\x00\\x00\\x001\\x03\\x00\\x00\\x002.5\\x0f\\x00\\x00\\x00bytearray(b'q')\"",
    ),
    (
        'pb_utils.serialize_byte_tensor(np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object).T)',
        "b'\\x01\\x00\\x00\\x00a\\x01\\x00\\x00\\x00c\\x01\\x00\\x00\\x00b\\x01\\x00\\x00\\x00d'",
    ),
    ('pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"]))', "b'\\x02\\x00\\x00\\x00ab\\x01\\x00\\x00\\x00c'"),
    ('pb_utils.serialize_byte_tensor(np.zeros(2)), pb_utils.serialize_byte_tensor(np.array(["x"]))', "(None, None)"),
    ('pb_utils.serialize_byte_tensor([b"a"])', "AttributeError: 'list' object has no attribute 'size'"),
    ('pb_utils.deserialize_bytes_tensor(b"\\x01\\0\\0\\0a\\x02\\0\\0\\0bc")', "array([b'a', b'bc'], dtype=object)"),
    ('pb_utils.deserialize_bytes_tensor(b"")', "array([], dtype=object)"),
    (
        'pb_utils.deserialize_bytes_tensor(memoryview(b"\\x01\\0\\0\\0a")), pb_utils.deserialize_bytes_tensor(np.frombuffer(b"\\x01\\0\\0\\0a", np.uint8))',
        "(array([b'a'], dtype=object), array([b'a'], dtype=object))",
    ),
    (
        'pb_utils.get_input_config_by_name({"input": [{"name": "a"}]}, "a"), pb_utils.get_input_config_by_name({}, "a"), pb_utils.get_input_config_by_name({"input": []}, "a")',
        "({'name': 'a'}, None, None)",
    ),
    (
        'pb_utils.get_output_config_by_name({"output": [{"name": "a"}]}, "b"), pb_utils.get_output_config_by_name({"output": [{"name": "a"}]}, "a")',
        "(None, {'name': 'a'})",
    ),
    ('pb_utils.get_output_config_by_name({"output": [{}]}, "b")', "KeyError: 'name'"),
    (
        'pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([tensor(np.zeros(1))]), "T").name(), pb_utils.get_output_tensor_by_name(pb_utils.InferenceResponse([]), "T")',
        "('T', None)",
    ),
    (
        'pb_utils.get_input_tensor_by_name(request(inputs=[tensor(np.zeros(1))]), "T").name(), pb_utils.get_input_tensor_by_name(request(), "T")',
        "('T', None)",
    ),
    (
        'pb_utils.using_decoupled_model_transaction_policy({}), pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {"decoupled": True}})',
        "(False, True)",
    ),
    ('pb_utils.using_decoupled_model_transaction_policy({"model_transaction_policy": {}})', "KeyError: 'decoupled'"),
    (
        'after(config(max_batch_size=8), "set_max_batch_size", 4)',
        "ValueError: configuration specified max_batch_size 8, but in auto-complete-config function for model 'M' specified max_batch_size 4",
    ),
    ('after(config(max_batch_size=4), "set_max_batch_size", 8)', "{'max_batch_size': 8}"),
    ('after(config(), "set_max_batch_size", "x")', "TypeError: '>' not supported between instances of 'int' and 'str'"),
    ("config().as_dict()", "{'name': 'M', 'max_batch_size': 0, 'input': [], 'output': []}"),
    ('after(config(), "set_dynamic_batching")', "{'dynamic_batching': {}}"),
    (
        'after(config(dynamic_batching={"max_queue_delay_microseconds": 3}), "set_dynamic_batching")',
        "{'dynamic_batching': {'max_queue_delay_microseconds': 3}}",
    ),
    (
        'after(config(sequence_batching={}), "set_dynamic_batching")',
        "ValueError: Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model 'M' tries to set scheduling_choice as 'dynamic_batching'",
    ),
    (
        'after(config(ensemble_scheduling={}), "set_dynamic_batching")',
        "ValueError: Configuration specified scheduling_choice as 'ensemble_scheduling', but auto-complete-config function for model 'M' tries to set scheduling_choice as 'dynamic_batching'",
    ),
    ('after(config(), "add_input", io())', "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1]}]}"),
    (
        'after(config(), "add_input", io(optional=True))',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}]}",
    ),
    (
        'after(config(), "add_input", io(x=1))',
        "ValueError: input 'a' in auto-complete-config function for model 'M' contains property other than 'name', 'data_type', 'dims' and 'optional'.",
    ),
    (
        'after(config(), "add_input", {"data_type": "TYPE_FP32", "dims": [1]})',
        "ValueError: input in auto-complete-config function for model 'M' is missing 'name' property.",
    ),
    (
        'after(config(), "add_input", {"name": "a", "dims": [1]})',
        "ValueError: input 'a' in auto-complete-config function for model 'M' is missing 'data_type' property.",
    ),
    (
        'after(config(), "add_input", {"name": "a", "data_type": "TYPE_FP32"})',
        "ValueError: input 'a' in auto-complete-config function for model 'M' is missing 'dims' property.",
    ),
    (
        'after(config(), "add_input", {"name": "a"})',
        "ValueError: input 'a' in auto-complete-config function for model 'M' is missing 'data_type' property.",
    ),
    (
        'after(config(), "add_input", {})',
        "ValueError: input in auto-complete-config function for model 'M' is missing 'name' property.",
    ),
    ('after(config(), "add_output", io())', "{'output': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1]}]}"),
    (
        'after(config(), "add_output", io(optional=True))',
        "ValueError: output 'a' in auto-complete-config function for model 'M' contains property other than 'name', 'data_type' and 'dims'.",
    ),
    (
        'after(config(), "add_output", {"data_type": "TYPE_FP32", "dims": [1]})',
        "ValueError: output in auto-complete-config function for model 'M' is missing 'name' property.",
    ),
    (
        'after(config(), "add_output", {"name": "a", "dims": [1]})',
        "ValueError: output 'a' in auto-complete-config function for model 'M' is missing 'data_type' property.",
    ),
    (
        'after(config(), "add_output", {"name": "a", "data_type": "TYPE_FP32"})',
        "ValueError: output 'a' in auto-complete-config function for model 'M' is missing 'dims' property.",
    ),
    (
        'after(config(input=[io()]), "add_input", io())',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1]}]}",
    ),
    (
        'after(config(input=[io()]), "add_input", io(name="b"))',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1]}, {'name': 'b', 'data_type': 'TYPE_FP32', 'dims': [1]}]}",
    ),
    (
        'after(config(input=[io()]), "add_input", io(data_type="TYPE_INT8"))',
        "ValueError: unable to load model 'M', configuration expects datatype TYPE_FP32 for input 'a', model provides TYPE_INT8",
    ),
    (
        'after(config(input=[io()]), "add_input", io(data_type="TYPE_INVALID"))',
        "ValueError: unable to load model 'M', configuration expects datatype TYPE_FP32 for input 'a', model provides TYPE_INVALID",
    ),
    (
        'after(config(input=[io()]), "add_input", io(dims=[2]))',
        "ValueError: model 'M', tensor 'a': the model expects dims [2] but the model configuration specifies dims [1]",
    ),
    (
        'after(config(input=[io()]), "add_input", io(dims=[]))',
        "ValueError: model 'M', tensor 'a': the model expects dims [] but the model configuration specifies dims [1]",
    ),
    (
        'after(config(input=[io()]), "add_input", io(dims=(1,)))',
        "ValueError: model 'M', tensor 'a': the model expects dims (1,) but the model configuration specifies dims [1]",
    ),
    (
        'after(config(input=[io()]), "add_input", io(optional=True))',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}]}",
    ),
    (
        'after(config(input=[io(optional=False)]), "add_input", io(optional=True))',
        "ValueError: model 'M', tensor 'a': the model expects optional True but the model configuration specifies optional False",
    ),
    (
        'after(config(input=[io(optional=True)]), "add_input", io())',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}]}",
    ),
    (
        'after(config(input=[io(optional=True)]), "add_input", io(optional=False))',
        "ValueError: model 'M', tensor 'a': the model expects optional False but the model configuration specifies optional True",
    ),
    (
        'after(config(input=[io(data_type="TYPE_INVALID", dims=[])]), "add_input", io(optional=True))',
        "{'input': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [1], 'optional': True}]}",
    ),
    (
        'after(config(output=[io(data_type="TYPE_INVALID", dims=[])]), "add_output", io(dims=[2, -1]))',
        "{'output': [{'name': 'a', 'data_type': 'TYPE_FP32', 'dims': [2, -1]}]}",
    ),
    (
        'after(config(output=[io()]), "add_output", io(data_type="TYPE_INT8"))',
        "ValueError: unable to load model 'M', configuration expects datatype TYPE_FP32 for output 'a', model provides TYPE_INT8",
    ),
    (
        'after(config(output=[io()]), "add_output", io(dims=[2, -1]))',
        "ValueError: model 'M', tensor 'a': the model expects dims [2, -1] but the model configuration specifies dims [1]",
    ),
    (
        'after(config(), "set_model_transaction_policy", {"decoupled": True})',
        "{'model_transaction_policy': {'decoupled': True}}",
    ),
    ('after(config(), "set_model_transaction_policy", {})', "{'model_transaction_policy': {}}"),
    (
        'after(config(), "set_model_transaction_policy", {"x": 1})',
        "ValueError: model transaction property in auto-complete-config function for model 'M' contains property other than 'decoupled'.",
    ),
    (
        'after(config(model_transaction_policy={"decoupled": False}), "set_model_transaction_policy", {"decoupled": True})',
        "ValueError: trying to change decoupled property in auto-complete-config for model 'M', which is already set to 'False'.",
    ),
    (
        'after(config(model_transaction_policy={"decoupled": True}), "set_model_transaction_policy", {"decoupled": False})',
        "ValueError: trying to change decoupled property in auto-complete-config for model 'M', which is already set to 'True'.",
    ),
    (
        'after(config(model_transaction_policy={"decoupled": True}), "set_model_transaction_policy", {"decoupled": True})',
        "{'model_transaction_policy': {'decoupled': True}}",
    ),
    (
        'after(config(model_transaction_policy={"decoupled": True}), "set_model_transaction_policy", {})',
        "{'model_transaction_policy': {'decoupled': True}}",
    ),
    ('pb_utils.ModelConfig({"a": 1})', "TypeError: the JSON object must be str, bytes or bytearray, not dict"),
]
