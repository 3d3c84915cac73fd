"""pb_utils logging, metrics and model control, evaluated inside the stub."""

# ruff: noqa: E501 - a case reads best on one line

from ..request import Case, evaluations, outcome_class

_FAMILY = "pb_utils.MetricFamily('{name}', 'text', pb_utils.MetricFamily.{kind})"


def _metric(name: str, kind: str, arguments: str, then: str) -> str:
    """Makes a family and one metric ``m`` of it and evaluates ``then``."""
    family = _FAMILY.format(name=name, kind=kind)
    return f"(lambda f: (lambda m: {then})(f.Metric({arguments})))({family})"


CASES: tuple[Case, ...] = evaluations(
    "control_utils",
    {
        "log": "pb_utils.Logger.log('text')",
        "log_level": "pb_utils.Logger.log('text', pb_utils.Logger.WARNING)",
        "log_info": "pb_utils.Logger.log_info('text')",
        "log_all": "[f('text') for f in (pb_utils.Logger.log_warn, pb_utils.Logger.log_error, pb_utils.Logger.log_verbose)]",
        "log_none": outcome_class("pb_utils.Logger.log_info(None)"),
        "log_number": outcome_class("pb_utils.Logger.log_info(5)"),
        "log_integer_level": outcome_class("pb_utils.Logger.log('text', 1)"),
        "log_none_level": outcome_class("pb_utils.Logger.log('text', None)"),
        "log_bytes": "pb_utils.Logger.log_info(b'bytes')",
        "log_levels": "[repr(l) for l in (pb_utils.Logger.INFO, pb_utils.Logger.WARNING, pb_utils.Logger.ERROR, pb_utils.Logger.VERBOSE)]",
        "log_no_text": outcome_class("pb_utils.Logger.log_info()"),
        "log_unknown": outcome_class("pb_utils.Logger.log_debug('x')"),
    },
) + evaluations(
    "control_utils",
    {
        "ready": "pb_utils.is_model_ready('add_sub')",
        "ready_version": "pb_utils.is_model_ready('add_sub', '1')",
        "ready_keyword": "pb_utils.is_model_ready(model_name='add_sub', model_version='1')",
        "ready_other_version": "pb_utils.is_model_ready('add_sub', '7')",
        "ready_unknown": "pb_utils.is_model_ready('nosuch')",
        "ready_none": outcome_class("pb_utils.is_model_ready(None)"),
        "ready_integer_version": outcome_class("pb_utils.is_model_ready('add_sub', 1)"),
        "load_refused": "pb_utils.load_model('add_sub')",
        "load_bad_files": "pb_utils.load_model('add_sub', '', [1])",
        "unload_refused": "pb_utils.unload_model('add_sub')",
        "load_none": outcome_class("pb_utils.load_model(None)"),
        "counter": _metric("c1", "COUNTER", "labels={'a': 'b'}", "(m.increment(2), m.increment(0.5), m.value())"),
        "counter_negative": _metric("c2", "COUNTER", "", "m.increment(-1)"),
        "counter_set": _metric("c3", "COUNTER", "", "m.set(1)"),
        "gauge": _metric(
            "g1", "GAUGE", "labels=None", "(m.increment(2), m.increment(-5), m.value(), m.set(9), m.value())"
        ),
        "gauge_labels_number": _metric("g2", "GAUGE", "labels={'a': 1}", "m.value()"),
        "gauge_labels_list": _metric("g3", "GAUGE", "labels=[1]", "m.value()"),
        "gauge_text": "class_of(lambda: " + _metric("g4", "GAUGE", "", "m.set('x')") + ")",
        "same_series": "(lambda f: (lambda a, b: (a.increment(3), b.value())[1])(f.Metric({'x': 'y'}), f.Metric({'x': 'y'})))"
        "(pb_utils.MetricFamily('g5', 'text', pb_utils.MetricFamily.GAUGE))",
        "family_other_kind": "(lambda f: pb_utils.MetricFamily('g6', 'text', pb_utils.MetricFamily.COUNTER))"
        "(pb_utils.MetricFamily('g6', 'text', pb_utils.MetricFamily.GAUGE))",
        "family_bad_name": "pb_utils.MetricFamily('not a name', 'text', pb_utils.MetricFamily.GAUGE)",
        "family_bad_kind": outcome_class("pb_utils.MetricFamily('g7', 'text', 1)"),
        "family_none": outcome_class("pb_utils.MetricFamily(None, 'text', pb_utils.MetricFamily.GAUGE)"),
        "orphan": "(lambda m: m.value())(pb_utils.MetricFamily('g8', 'text', pb_utils.MetricFamily.GAUGE).Metric())",
        "ready_bad_version": "pb_utils.is_model_ready('add_sub', 'x')",
    },
    # Real Triton does not survive some of these.
    server="calls",
)
