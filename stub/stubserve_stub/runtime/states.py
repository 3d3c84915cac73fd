"""Implicit state: tensors of a sequence that are kept from one of its requests to the next (`sequence_batching.state`).

All requests of a sequence come to one instance, so its stub keeps the states: small ones as bytes, large ones with the
outputs in its own segment, which counts against the server's limit. The parent never sees them. It says with a batch to
which sequence each request belongs, by a number that is never used again.

- The first request of a sequence (START) gets the initial state: the contents of a file, or zeros. Zeros are also the
  default; upstream then gives the model whatever lies in memory, perhaps of another caller.
- An update is the change by one request: it gets the states, the model computes, `keep` takes the new states out of its
  answer. All are checked before the first is taken. So a failed update leaves the states as they were, and the sequence
  may go on, as in upstream. A state that the answer leaves out stays as it was, too, with a line in the log (upstream
  logs nothing).
- After the request with END nothing is kept. The parent says when a sequence ends without END (`drop_states`).
- With `iterative_sequence` a request executes many times and END means nothing: its states are kept until the parent
  says that the sequence is over.

A model that gets the state itself (`in_place`) may keep a view. Then the first batch after its death frees the block.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.host import Host
from stubserve_stub.runtime.outputs import own_offsets
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull, address_of, bottom_of
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, BY_NUMBER, fits, nbytes_of
from stubserve_stub.wire.messages import WireTensor
from stubserve_stub.wire.places import InArena, Lent, Zeros, zeros

FOLDER = "initial_state"
SEQUENCE_START, SEQUENCE_END = 1, 2

# A model's answer under one name: data type, shape, and a contiguous buffer
Answered = Tuple[int, Sequence[int], Any]


class StateSpec(NamedTuple):
    """One state of the configuration. `dims` are the model's, with that of the batch, -1 for any size.

    `initial` is what a sequence begins with. With `in_place` a model may be given the state's own memory.
    """

    input: str
    output: str
    datatype: int
    dims: Sequence[int]
    initial: WireTensor
    in_place: bool


def keep_states(config: Mapping[str, Any], model_dir: str, host: Host) -> Optional[States]:
    """The states of an instance, None if its configuration has none. Listens to the parent for ended sequences.

    Raises Refusal for a file that cannot be read.
    """
    specs = specs_of(config, model_dir)
    if not specs:
        return None
    iterative = bool(config["sequence_batching"].get("iterative_sequence"))
    states = States(config["name"], specs, host.channel, iterative, host.log)
    host.control.handle("drop_states", lambda message: states.drop(message["sequences"]))
    return states


def specs_of(config: Mapping[str, Any], model_dir: str) -> List[StateSpec]:
    """The states of a configuration that the server has checked. Raises Refusal for a file that cannot be read."""
    states = (config.get("sequence_batching") or {}).get("state") or []
    return [_spec(state, int(config.get("max_batch_size", 0)) > 0, model_dir) for state in states]


def _spec(state: Mapping[str, Any], batches: bool, model_dir: str) -> StateSpec:
    name, datatype = state["input_name"], BY_CONFIG_NAME[state["data_type"]].number
    batch = [1] if batches else []
    dims = [*batch, *map(int, state["dims"])]
    shape = [1 if dim == -1 else dim for dim in dims]
    data = None
    for initial in state.get("initial_state") or ():
        shape = [*batch, *map(int, initial["dims"])]
        if initial.get("data_file"):
            data = _contents(os.path.join(model_dir, FOLDER, initial["data_file"]), name)
    zeros = bytes(nbytes_of(datatype, shape))
    if data is None:
        data = zeros
    elif BY_NUMBER[datatype].itemsize:
        data = data[: len(zeros)]
    in_place = bool(state.get("use_same_buffer_for_input_output"))
    return StateSpec(name, state["output_name"], datatype, dims, (name, datatype, shape, data), in_place)


def _contents(path: str, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refusal(f"initial state of '{name}': '{path}' cannot be read: {error.strerror}") from None


class States:
    """The states of all sequences of one instance. Safe on any thread.

    If they are `iterative`, no request is known to be the last of its sequence. `log` is `Host.log`.
    """

    def __init__(
        self,
        model: str,
        specs: Sequence[StateSpec],
        channel: Channel,
        iterative: bool = False,
        log: Callable[[int, str, int, str], None] = lambda *line: None,
    ) -> None:
        self.model = model
        self._log = log
        # Outputs that the model has left out
        self._left_out: Set[str] = set()
        self._last = 0 if iterative else SEQUENCE_END
        self.specs = specs
        self.outputs = [spec.output for spec in specs]
        self._channel = channel
        self._guard = threading.RLock()
        # By the number of a sequence: the tensors for its next request, in the order of `specs`
        self._kept: Dict[int, Sequence[WireTensor]] = {}
        # By offset: the reference that dies with the last view of a state that the model was given in place
        self._shown: "Dict[int, weakref.ref[Any]]" = {}
        # Blocks that only a view of the model still needs
        self._lingering: "List[Tuple[int, weakref.ref[Any]]]" = []

    def updates(self, sequences: Sequence[int], flags: Sequence[int]) -> "List[StateUpdate]":
        """One for each request of a batch, from its sequence and flags; sequence 0 is an empty slot."""
        with self._guard:
            if self._lingering:
                self._sweep()
            updates = [
                StateUpdate(self, sequence, self._given(sequence, flag), bool(flag & self._last))
                for sequence, flag in zip(sequences, flags)
            ]
        for update in updates:
            if not update.sequence:
                given = (other.tensors for other in updates if other.sequence)
                update.tensors = _zeros_like(next(given, update.tensors))
        return updates

    def drop(self, sequences: Sequence[int]) -> None:
        """No further request of these sequences comes."""
        with self._guard:
            for sequence in sequences:
                self._free(self._kept.pop(sequence, ()))

    def memory(self, tensor: WireTensor) -> Any:
        """A state's bytes, read-only: `bytes` or an array of uint8."""
        place: Any = tensor[3]
        if isinstance(place, bytes):
            return place
        if isinstance(place, Zeros):
            return zeros(place.nbytes)
        return np.frombuffer(self._channel.arena.view(place.offset, place.nbytes).toreadonly(), np.uint8)

    def own_memory(self, tensor: WireTensor) -> Any:
        """The memory of a state in the arena itself, which the model may write to, as an array of uint8."""
        place: Any = tensor[3]
        array = np.frombuffer(self._channel.arena.view(place.offset, place.nbytes), np.uint8)
        with self._guard:
            self._shown[place.offset] = weakref.ref(bottom_of(array))
        return array

    def left_out(self, spec: StateSpec) -> None:
        """The model has left out this state, which stays as it was; the log says so once."""
        if spec.output not in self._left_out:
            self._left_out.add(spec.output)
            text = (
                f"model '{self.model}' has not answered output '{spec.output}', the new state of '{spec.input}'; its "
                "sequence keeps the state that it had (said once)"
            )
            self._log(codes.LOG_WARNING, "states.py", 0, text)

    @property
    def sequences(self) -> int:
        """How many sequences there are states of."""
        return len(self._kept)

    def _given(self, sequence: int, flags: int) -> Sequence[WireTensor]:
        initial = [spec.initial for spec in self.specs]
        if not sequence:
            return initial
        if flags & SEQUENCE_START:
            self._free(self._kept.pop(sequence, ()))
        return self._kept.setdefault(sequence, initial)

    def _replace(self, sequence: int, new: Sequence[WireTensor], placer: Any) -> None:
        """Has `new` be the states for the next request of a sequence, unless the sequence is over."""
        with self._guard:
            old = self._kept.get(sequence)
            if old is None:
                placer.free(own_offsets(new))
                return
            self._kept[sequence] = new
            stays = own_offsets(new)
            self._free([tensor for tensor in old if getattr(tensor[3], "offset", None) not in stays])

    def _free(self, tensors: Sequence[WireTensor]) -> None:
        for offset in own_offsets(tensors):
            shown = self._shown.pop(offset, None)
            if shown is not None and shown() is not None:
                self._lingering.append((offset, shown))
            else:
                self._channel.free([offset])

    def _sweep(self) -> None:
        lingering, self._lingering = self._lingering, []
        for offset, shown in lingering:
            if shown() is None:
                self._channel.free([offset])
            else:
                self._lingering.append((offset, shown))

    def _placed(self, old: WireTensor, answered: Answered, placer: Any) -> WireTensor:
        datatype, shape, buffer = answered
        was = old[3]
        if isinstance(was, InArena) and _lies_at(buffer, self._channel.arena.address(was.offset), was.nbytes):
            return (old[0], datatype, shape, was)
        place = placer.place(buffer)
        if isinstance(place, Lent):
            # Memory of a request, which will soon be free
            place = self._channel.place(buffer)
        return (old[0], datatype, shape, place)


class StateUpdate:
    """The change by one request to the states of its sequence. `tensors` are its inputs, one for each state.

    `sequence` is 0 for an empty slot. After the `last` update nothing is kept.
    """

    __slots__ = ("_states", "last", "sequence", "tensors")

    def __init__(self, states: States, sequence: int, tensors: Sequence[WireTensor], last: bool) -> None:
        self._states = states
        self.sequence = sequence
        self.tensors = tensors
        self.last = last

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the outputs that are states."""
        return self._states.outputs

    def keep(self, answered: Mapping[str, Answered], placer: Any, partly: bool = False) -> None:
        """Takes the new states out of the model's answer, by name; others stay as they are.

        The log names those, unless this is the last update or the model may answer `partly`. `placer` places and frees
        memory. Raises Refusal that names the state, or ArenaFull, and then changes nothing.
        """
        states = self._states
        for spec in states.specs:
            if spec.output in answered:
                self._check(spec, answered[spec.output])
            elif not (partly or self.last):
                states.left_out(spec)
        if self.last or not self.sequence:
            return
        new: List[WireTensor] = []
        had = self.tensors
        try:
            for spec, old in zip(states.specs, had):
                given = answered.get(spec.output)
                new.append(old if given is None else states._placed(old, given, placer))
        except ArenaFull:
            were = own_offsets(had)
            placer.free([offset for offset in own_offsets(new) if offset not in were])
            raise
        states._replace(self.sequence, new, placer)
        self.tensors = new

    def keep_only(self, answered: Mapping[str, Answered], placer: Any) -> None:
        """As `keep`, `partly`, for a request that executes again and so has no other output yet."""
        others = [name for name in answered if name not in self._states.outputs]
        if others:
            raise Refusal(
                f"model '{self._states.model}' has answered output '{others[0]}' for a request that it wants to "
                "execute again; only new states may be answered then"
            )
        self.keep(answered, placer, partly=True)

    def end(self) -> None:
        """The request has been executed, well or not."""
        if self.last and self.sequence:
            self._states.drop([self.sequence])

    def _check(self, spec: StateSpec, answered: Answered) -> None:
        datatype, shape, _ = answered
        if datatype == spec.datatype and fits(shape, spec.dims):
            return
        kind, wanted = BY_NUMBER[datatype].config_name, BY_NUMBER[spec.datatype].config_name
        raise Refusal(
            f"model '{self._states.model}' has answered output '{spec.output}', the new state of '{spec.input}', as "
            f"{kind} {list(shape)}, but its configuration says {wanted} {list(spec.dims)}; its sequence keeps the "
            "state that it had"
        )


def _zeros_like(tensors: Sequence[WireTensor]) -> Sequence[WireTensor]:
    return [(name, datatype, shape, Zeros(nbytes_of(datatype, shape))) for name, datatype, shape, _ in tensors]


def _lies_at(buffer: Any, address: int, nbytes: int) -> bool:
    if isinstance(buffer, bytes) or buffer.nbytes != nbytes:
        return False
    return address_of(buffer) == address
