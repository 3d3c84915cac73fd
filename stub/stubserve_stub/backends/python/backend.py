"""The Python backend: runs the class `TritonPythonModel` of a `model.py`, and connects `pb_utils` to the server.

The log, metrics and queries to the server are connected when the instance is initialized. A model may make requests
of its own from the end of `initialize` to the beginning of `finalize`.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence

from stubserve_stub.api import bls, logger, metrics, server_queries, utils
from stubserve_stub.api.constants import REQUEST_RELEASE_RESCHEDULE
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender, Senders
from stubserve_stub.api.tensors import use_devices
from stubserve_stub.backends.base import Backend, InstanceSetup, ModelFiles
from stubserve_stub.backends.python.batch import ModelBatch
from stubserve_stub.backends.python.forks import Forks
from stubserve_stub.backends.python.model import Model, import_model, raised_by
from stubserve_stub.backends.python.output_check import OutputCheck
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.calls import Calls
from stubserve_stub.runtime.failure import describe
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.states import States, keep_states
from stubserve_stub.wire import codes
from stubserve_stub.wire.messages import Entry


def takes_devices(config: Mapping[str, Any]) -> bool:
    """Whether a model is given inputs in memory of a GPU as they are; by default it gets copies on the host."""
    force = (config.get("parameters") or {}).get("FORCE_CPU_ONLY_INPUT_TENSORS") or {}
    return bool(force.get("string_value") == "no")


class PythonBackend(Backend):
    _model: Model
    _senders: Senders
    _instance: InstanceSetup
    # The batch that runs, for cancellation, which arrives on the control thread
    _current: Optional[ModelBatch] = None
    # None once no answer needs to be compared with the configuration
    _check: Optional[OutputCheck] = None
    # None without implicit state
    _states: Optional[States] = None
    # Whether inputs in memory of a GPU stay there
    _takes_devices = False

    def initialize(self, host: Host) -> None:
        super().initialize(host)
        self._process = os.getpid()

    def model_initialize(self, model: ModelFiles) -> None:
        utils.set_model_dir(model.version_dir)
        self._model = Model(import_model(model.file, model.module, model.paths), model.file)
        self.completes_config = self._model.completes_config
        self.methods = self._model.methods

    def complete_config(self, model: str, config_json: str) -> str:
        return self._model.complete_config(model, config_json)

    def instance_initialize(self, instance: InstanceSetup) -> None:
        host = self.host
        self._instance = instance
        self._thread = threading.get_ident()
        self._model = self._model_of_instance()
        self._senders = Senders(host.channel, instance.decoupled)
        logger.connect(self._log, host.channel.log_levels)
        queries = server_queries.ServerQueries(instance.name, host.control.send)
        host.control.handle("query_answer", queries.on_answer)
        server_queries.connect(queries)
        metrics.connect(queries)
        # First, because the model may change the arguments.
        self._check_outputs(instance)
        config = json.loads(instance.arguments["model_config"])
        self._states = keep_states(config, instance.arguments["model_repository"], host)
        self._takes_devices = takes_devices(config)
        if host.channel.devices is not None:
            from stubserve_stub.api import device_tensors  # not at the top: only servers with GPUs need it

            use_devices(device_tensors.from_dlpack)
        self._model.initialize(instance.arguments)
        self.checks_readiness = self._model.checks_readiness
        host.channel.on_poke = self._report_dropped
        host.control.handle("acknowledge", self._on_acknowledge)
        bls.connect(Calls(host.channel, bls.received))
        Forks(instance.name, host.channel).connect()

    def _model_of_instance(self) -> Model:
        return self._model.another()

    def _log(self, level: int, file: str, line: int, text: str) -> None:
        """Logs a line of the model, with the id of the request where `execute` logs it for a single request."""
        batch = self._current
        executes = batch is not None and threading.get_ident() == self._thread
        requests = batch.requests if executes and batch is not None else ()
        self.host.log(level, file, line, text, requests[0].request_id() if len(requests) == 1 else "")

    def _check_outputs(self, instance: InstanceSetup) -> None:
        arguments, host = instance.arguments, self.host
        warn = functools.partial(host.log, codes.LOG_WARNING, "model.py", 0)
        check = OutputCheck(host.check_outputs, arguments["model_name"], arguments["model_config"], warn)
        # None where nothing is checked, so a batch has to look only at this.
        self._check = self._senders.check = check if check.left else None
        self._senders.misnamed = check.misnamed if check.left else None

    def is_ready(self) -> bool:
        return self._model.is_ready()

    # Batches

    def execute(self, batch: Batch) -> Sequence[Entry]:
        outputs = list(self._instance.outputs)
        received = ModelBatch(batch, self._senders, outputs, self._states, self._takes_devices)
        self._current = received
        # After `_current` is set: `cancel` may run at any moment, and has told the batch first.
        if batch.cancelled:
            received.cancel(batch.cancelled)
        try:
            model = self._model
            result = model.execute(list(received.requests))
            if self._instance.decoupled:
                future = model.start(self._instance.name, result)
                entries: Sequence[Entry] = received.left_open()
                if future is not None:
                    future.add_done_callback(functools.partial(self._on_coroutine_end, received.senders()))
            else:
                if type(result) is not list:
                    result = model.wait(result)
                batch.computed()
                responses = received.check(result)
                if self._check is not None:
                    responses = self._look_at(received, responses)
                entries = received.encode(responses)
        except BaseException as raised:
            if os.getpid() == self._process:  # in a process that the model has forked nothing of this is its own
                received.give_up_senders(self.host.failure_text(describe(raised)))
                self._current = None
                received.release()
            raise
        finally:
            if batch.sequences:
                received.end_updates()
        self._current = None
        received.release()
        return entries

    def _look_at(
        self, received: ModelBatch, responses: "List[Optional[InferenceResponse]]"
    ) -> "List[Optional[InferenceResponse]]":
        """Compares the responses of a batch with the configuration, and returns those that its clients get."""
        assert self._check is not None
        looked_at = list(responses)
        for index, request in enumerate(received.requests):
            if request._release_flags & REQUEST_RELEASE_RESCHEDULE:
                continue  # at most its new states
            inputs = request._inputs
            rows = inputs[0]._shape[0] if inputs and len(inputs[0]._shape) else None
            looked_at[index] = self._check.look(responses[index], request._requested_output_names, rows)
        if not self._check.left:
            self._check = self._senders.check = None
        return looked_at

    def _on_coroutine_end(self, senders: "List[weakref.ref[InferenceResponseSender]]", future: Any) -> None:
        raised = raised_by(future)
        if raised is None:
            return
        error = self.host.failure(raised)
        for reference in senders:
            sender = reference()
            if sender is not None:
                sender._end(error, alone=True)

    def _report_dropped(self) -> None:
        hint = "" if self._senders.decoupled else ". Is `return responses` missing at the end of `execute`?"
        for number, index in self._senders.report_dropped(self._instance.name):
            self.host.log(
                codes.LOG_WARNING,
                "backend.py",
                0,
                f"Model '{self._instance.name}' let go of the response sender of request {index} of batch {number} "
                f"without the final flag{hint}",
            )

    def revoke(self, number: int) -> None:
        self._senders.revoke(number)

    # On the control thread

    def cancel(self, number: int, indices: Sequence[int]) -> None:
        current = self._current
        if current is not None and current.number == number:
            current.cancel(indices)
        for index in indices:
            self._senders.cancel((number, index))

    def _on_acknowledge(self, message: Dict[str, Any]) -> None:
        # The frees travel with it because the main thread may be in `execute` for as long as the stream lasts.
        self.host.channel.free(message["frees"])
        for number, index in message["groups"]:
            self._senders.acknowledge((number, index))

    # The end

    def instance_finalize(self) -> None:
        bls.connect(None)
        try:
            self._model.finalize()
        finally:
            del self._model
