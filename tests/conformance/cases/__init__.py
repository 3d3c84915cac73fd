"""Every case, in the order they run; names are unique."""

from ..request import Case
from . import (
    admission,
    batching,
    behaviour,
    calls,
    changing,
    classification,
    compression,
    config,
    environments,
    generate,
    grpc_control,
    grpc_infer,
    grpc_stream,
    health,
    http,
    http2_frames,
    index,
    infer_binary,
    infer_json,
    loading,
    logging,
    malformed,
    parameters,
    raw_body,
    stats,
    utils_config,
    utils_control,
    utils_message,
    utils_surface,
    utils_tensor,
    versions,
)

# Statistics come first where a case looks at a model nobody has used yet; what may wedge an instance comes last.
_MODULES = (
    stats,
    health,
    config,
    versions,
    infer_json,
    infer_binary,
    raw_body,
    generate,
    compression,
    classification,
    parameters,
    admission,
    malformed,
    index,
    http,
    http2_frames,
    logging,
    grpc_control,
    grpc_infer,
    grpc_stream,
    utils_tensor,
    utils_message,
    utils_config,
    utils_control,
    utils_surface,
    calls,
    batching,
    behaviour,
    loading,
    changing,
    environments,
)

CASES: tuple[Case, ...] = tuple(entry for module in _MODULES for entry in module.CASES)

_NAMES = [entry.name for entry in CASES]
if len(set(_NAMES)) != len(_NAMES):
    raise ValueError(f"case names used twice: {sorted({name for name in _NAMES if _NAMES.count(name) > 1})}")
