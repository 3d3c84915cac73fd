"""Environments of models: what each kind of folder and archive leads to, in the index and when it is asked."""

from ..environment_models import ALONE, MODELS
from ..repository import Model
from ..request import Case, case, infer, post

_INDEX = post("/v2/repository/index")
_BODY = '{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[4]}]}'


def _case(model: Model, server: str) -> Case:
    return case(f"environment/{model.name}", infer(model.name, _BODY), _INDEX, pick=model.name, server=server)


CASES: tuple[Case, ...] = (
    *(_case(model, "environments") for model in MODELS),
    *(_case(model, model.name) for model in ALONE),
)
