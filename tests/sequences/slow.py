"""The rules of the sequence batcher, written the slow and literal way: lists that are looked through each time.

A sequence is one object from its START to its end, with all its requests that wait. `Slow` is told the same as the
scheduler, but may be asked again at every moment: it needs nobody to wake it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request

MS = 1_000_000


@dataclass
class Rules:
    oldest: bool
    max_batch_size: int
    candidates: int
    delay_ms: int
    utilization: float
    preferred: tuple[int, ...]
    idle_ms: int
    by_shape: bool
    iterative: bool = False

    @property
    def slots(self) -> int:
        return self.candidates if self.oldest else max(1, self.max_batch_size)


@dataclass(eq=False)
class OneSequence:
    id: int | str
    requests: list[Request] = field(default_factory=list)
    # Whether further requests may come
    open: bool = True
    last_ms: int = 0
    expires_ms: int | None = None
    slot: OneSlot | None = None


@dataclass(eq=False)
class OneSlot:
    instance: int
    index: int
    sequence: OneSequence | None = None
    # What keeps the next from running: under the oldest strategy what runs or is a candidate
    candidate: Request | None = None


class Slow:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.slots: list[OneSlot] = []
        self.idle: list[int] = []
        # Idle instances in the order in which something came for them, or they became idle: so the direct strategy has
        # them run, and who runs first may have a slot free for the backlog first
        self.due: list[int] = []
        # In the order in which they began; all that are not over
        self.sequences: list[OneSequence] = []
        self.lost: dict[int | str, int] = {}
        # The last id that was given to a request without one
        self.own_ids = 0
        # Under the oldest strategy, in the order in which they became ones, and when
        self.candidates: list[tuple[Request, OneSlot, int, OneSequence]] = []
        self.answers: list[tuple[str, str]] = []
        # Instances on which no sequence begins any more
        self.closed: list[int] = []
        # Slots in the order in which something changed that may make their next request a candidate
        self.stirred: list[OneSlot] = []

    # What happens

    def enqueue(self, request: Request, now_ms: int) -> str:
        """Which error it is refused with, empty if it is taken."""
        id, flags = request.options.correlation_id, request.options.flags
        if not id and not self.rules.iterative:
            return "no id"
        if not id:
            flags = SEQUENCE_START
            while not id or any(one.id == id and one.open for one in self.sequences):
                self.own_ids = id = self.own_ids + 1
        mine = [one for one in self.sequences if one.id == id and one.open]
        assert len(mine) <= 1
        if not mine:
            if not flags & SEQUENCE_START:
                return "lost" if self.lost.get(id, -1) > now_ms else "not started"
            self.lost.pop(id, None)
            sequence = OneSequence(id)
            self.sequences.append(sequence)
            waiting = [one for one in self.sequences if one.slot is None and one is not sequence]
            free = [slot for slot in self.slots if slot.sequence is None and slot.instance not in self.closed]
            if free and not waiting:
                # `slots` has them as their instances joined, and the first of equal ones is taken.
                self.give(sequence, min(free, key=lambda slot: slot.index))
        else:
            sequence = mine[0]
        sequence.requests.append(request)
        sequence.last_ms = now_ms
        if flags & SEQUENCE_END and not self.rules.iterative:
            sequence.open = False
        if sequence.slot is None:
            if request.options.timeout_us:
                times = [
                    now_ms + request.options.timeout_us // 1000,
                    *([] if sequence.expires_ms is None else [sequence.expires_ms]),
                ]
                sequence.expires_ms = min(times)
        else:
            self.stir(sequence.slot)
        return ""

    def cancel(self, request: Request) -> None:
        for sequence in list(self.sequences):
            if request in sequence.requests:
                place = sequence.requests.index(request) if sequence.slot is not None else 0
                self.cut(sequence, place)
                return
        for entry in self.candidates:
            if entry[0] is request:
                _, slot, _, sequence = entry
                self.candidates.remove(entry)
                self.answers.append((request.id, "cancelled"))
                slot.candidate = None
                if slot.sequence is sequence:
                    self.cut(sequence, 0)
                self.stir(slot)
                return

    def cut(self, sequence: OneSequence, place: int) -> None:
        """Ends a sequence; what it has from a place on is cancelled."""
        self.answers += [(one.id, "cancelled") for one in sequence.requests[place:]]
        del sequence.requests[place:]
        if sequence.slot is None:
            self.sequences.remove(sequence)
        elif not self.rules.iterative or (not sequence.requests and sequence.slot.candidate is None):
            sequence.open = False

    def join(self, instance: int) -> None:
        new = [OneSlot(instance, index) for index in range(self.rules.slots)]
        self.slots += new
        self.idles(instance)

    def done(self, instance: int, requests: list[Request]) -> None:
        for request in requests:
            for slot in self.slots:
                if slot.candidate is request:
                    slot.candidate = None
                    if self.rules.iterative and slot.sequence is not None and not slot.sequence.requests:
                        slot.sequence.open = False
                    self.stir(slot)
        self.idles(instance)

    def idles(self, instance: int) -> None:
        self.idle.append(instance)
        if instance not in self.due:
            self.due.append(instance)

    def reschedule(self, request: Request, now_ms: int) -> None:
        """An iterative model wants to execute a request again."""
        for slot in self.slots:
            if slot.candidate is request:
                slot.candidate = None
                assert slot.sequence is not None
                slot.sequence.requests.insert(0, request)
                self.stir(slot)
                if request.cancelled:
                    self.cut(slot.sequence, 0)

    def lose(self, instance: int) -> None:
        self.idle = [one for one in self.idle if one != instance]
        self.due = [one for one in self.due if one != instance]
        for slot in [slot for slot in self.slots if slot.instance == instance]:
            self.slots.remove(slot)
            for entry in [entry for entry in self.candidates if entry[1] is slot]:
                self.candidates.remove(entry)
                self.answers.append((entry[0].id, "lost"))
            if slot.sequence is not None:
                self.answers += [(one.id, "lost") for one in slot.sequence.requests]
                self.sequences.remove(slot.sequence)
                if slot.sequence.open and not self.rules.iterative:
                    self.lost[slot.sequence.id] = slot.sequence.last_ms + self.rules.idle_ms
        self.stirred = [slot for slot in self.stirred if slot in self.slots]

    # What is to be done

    def give(self, sequence: OneSequence, slot: OneSlot) -> None:
        sequence.slot, slot.sequence = slot, sequence

    def stir(self, slot: OneSlot) -> None:
        has = slot.sequence.requests if slot.sequence is not None else []
        if has and slot.candidate is None:
            if slot not in self.stirred:
                self.stirred.append(slot)
            if slot.instance in self.idle and slot.instance not in self.due:
                self.due.append(slot.instance)

    def free(self, slot: OneSlot, now_ms: int) -> None:
        """The sequence of a slot has left it."""
        if slot.sequence is not None:
            self.sequences.remove(slot.sequence)
            slot.sequence = None
        waiting = [one for one in self.sequences if one.slot is None]
        if waiting and slot.instance not in self.closed:
            self.give(waiting[0], slot)
            waiting[0].last_ms = now_ms
            self.stir(slot)

    def poll(self, now_ms: int) -> tuple[list[tuple[int, list[str | None]]], list[tuple[str, str]]]:
        """The batches that are handed out now, and the answers that are given."""
        for one in [one for one in self.sequences if one.slot is None]:
            if one.expires_ms is not None and one.expires_ms <= now_ms:
                self.answers += [(request.id, "expired") for request in one.requests]
                self.sequences.remove(one)
        if not self.rules.iterative:
            for one in self.sequences:
                if one.slot is not None and now_ms - one.last_ms >= self.rules.idle_ms:
                    one.open = False
        for slot in self.slots:
            at_rest = slot.candidate is None if self.rules.oldest else slot.instance in self.idle
            if slot.sequence is not None and not slot.sequence.open and not slot.sequence.requests and at_rest:
                self.sequences.remove(slot.sequence)
                slot.sequence = None
        for slot in sorted(self.slots, key=lambda slot: slot.index):
            if slot.sequence is None:
                self.free(slot, now_ms)
        runs = self.oldest(now_ms) if self.rules.oldest else self.direct(now_ms)
        answers, self.answers = self.answers, []
        return runs, answers

    def direct(self, now_ms: int) -> list[tuple[int, list[str | None]]]:
        runs: list[tuple[int, list[str | None]]] = []
        due, self.due = self.due, []
        for instance in due:
            slots = [slot for slot in self.slots if slot.instance == instance]
            ready = [slot for slot in slots if slot.sequence is not None and slot.sequence.requests]
            if not ready:
                continue
            heads = [slot.sequence.requests[0] for slot in ready if slot.sequence]
            oldest_ms = min(one.queue_start_ns for one in heads) // MS
            share = len(ready) / len(slots) + 1e-6
            if self.rules.delay_ms and self.rules.utilization > share and now_ms - oldest_ms < self.rules.delay_ms:
                self.due.append(instance)
                continue
            self.idle.remove(instance)
            shape = heads[0].inputs[0].shape
            batch: list[str | None] = []
            for slot in slots[: ready[-1].index + 1]:
                sequence = slot.sequence
                request = sequence.requests[0] if sequence is not None and sequence.requests else None
                if sequence is None or request is None or (self.rules.by_shape and request.inputs[0].shape != shape):
                    batch.append(None)
                    continue
                batch.append(request.id)
                del sequence.requests[0]
                if self.rules.iterative:
                    slot.candidate = request
                elif request.options.flags & SEQUENCE_END:
                    self.free(slot, now_ms)
            runs.append((instance, batch))
        return runs

    def oldest(self, now_ms: int) -> list[tuple[int, list[str | None]]]:
        while self.stirred:
            slot = self.stirred.pop(0)
            sequence = slot.sequence
            if slot.candidate is None and sequence is not None and sequence.requests:
                request = sequence.requests.pop(0)
                slot.candidate = request
                self.candidates.append((request, slot, now_ms, sequence))
                if request.options.flags & SEQUENCE_END and not self.rules.iterative:
                    self.free(slot, now_ms)
        runs: list[tuple[int, list[str | None]]] = []
        for instance in list(self.idle):
            mine = [entry for entry in self.candidates if entry[1].instance == instance]
            count = self.batch([entry[0] for entry in mine], [entry[2] for entry in mine], now_ms)
            if count:
                self.idle.remove(instance)
                for entry in mine[:count]:
                    self.candidates.remove(entry)
                runs.append((instance, [entry[0].id for entry in mine[:count]]))
        return runs

    def batch(self, waiting: list[Request], since_ms: list[int], now_ms: int) -> int:
        """How many of these run now, as the dynamic batcher has it; each is one row."""
        rules = self.rules
        limit = max(1, rules.max_batch_size)
        preferred = {size for size in rules.preferred if size <= limit} or {limit}
        alike = len(waiting)
        if rules.by_shape and limit > 1:
            differing = [
                index for index, one in enumerate(waiting) if one.inputs[0].shape != waiting[0].inputs[0].shape
            ]
            alike = min([*differing, alike])
        pending = min(alike, limit)
        if not pending:
            return 0
        stopped = pending < len(waiting)
        best = max([size for size in preferred if size <= pending], default=0)
        overdue = rules.delay_ms > 0 and now_ms - min(since_ms[:pending]) >= rules.delay_ms
        if best and not overdue:
            return best
        return pending if stopped or pending >= max(preferred) or overdue or not rules.delay_ms else 0
