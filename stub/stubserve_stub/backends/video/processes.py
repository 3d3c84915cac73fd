"""Each open source has a process of its own, its player, which is killed when nobody wants it any more.

FFmpeg reads what strangers send. It waits inside of its own code and of the resolver's, goes on after errors that it is
told, and takes the memory that a file asks for. So nobody asks it to stop: the kernel ends the player at any moment,
and with it all its connections, threads and memory. A limit of the kernel bounds the memory of one source, and a crash
ends one stream.

Players are forked by the starter, which does nothing else. The starter is forked from the stub before the stub has
threads that could hold a lock, and with PyAV imported. So a player is there within milliseconds. It has nothing of the
stub's descriptors. Over sockets that keep records go::

    stub ▶ starter    the number of a slot, with the socket to the player
    stub ▶ player     what to play, perhaps the bytes of a file, and then a byte for each frame that has been passed on
    player ▶ stub     records that begin with a kind, see `playing`
    starter ▶ stub    (DIED, status), the last record

When the stub shuts down its end of such a socket, the starter kills the player. A slot is memory that the stub and its
players share: the counts of frames, and the picture of one.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import queue
import select
import signal
import socket
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.video.options import VideoOptions
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes, messages

DIED = "died"
MOST_BYTES = 1 << 16
_TURN_MS = 100
_HEAD_BYTES = 64
_MAP_NORESERVE = 0x4000
_PR_SET_PDEATHSIG = 1

Record = Tuple[Any, ...]
# Runs in a player, with its socket and its slot
Play = Callable[[socket.socket, "Slot"], None]


class Counts:
    """`number` is that of the last frame of the source, `intact` how many were not broken. `gap` has how many have not
    been sent since the last one that was, by the reason. They lie in the first bytes of `memory`.
    """

    PASSED_OVER, STILL, LATE, BROKEN = range(4)

    def __init__(self, memory: Any) -> None:
        self._cells = np.frombuffer(memory, np.int64, 6)

    @property
    def number(self) -> int:
        return int(self._cells[0])

    @property
    def intact(self) -> int:
        return int(self._cells[1])

    @property
    def gap(self) -> List[int]:
        gap: List[int] = self._cells[2:].tolist()
        return gap

    def begin(self, number: int) -> None:
        """After the frame of this number, perhaps of an earlier player."""
        self._cells[:] = 0
        self._cells[0] = number

    def frame(self, intact: bool) -> None:
        self._cells[0] += 1
        self._cells[1] += intact

    def drop(self, reason: int) -> None:
        self._cells[2 + reason] += 1

    def sent(self) -> None:
        self._cells[2:] = 0


class Slot:
    """What the stub shares with one player after the other."""

    def __init__(self, options: VideoOptions) -> None:
        self._type = np.dtype(np.float32 if options.type == "FP32" else np.uint8)
        # Pages that no picture has touched take nothing.
        size = _HEAD_BYTES + 3 * options.max_pixels * self._type.itemsize
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        self.counts = Counts(self._memory)

    def picture(self, shape: Sequence[int]) -> Any:
        """The picture as an array, without a copy. Raises ValueError for one that does not fit."""
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, self._type, count, _HEAD_BYTES).reshape(shape)

    def clear(self) -> None:
        self._memory.madvise(mmap.MADV_REMOVE)


class Players:
    """Starts the players of one instance, of which each calls `play`: one for each of `streams` at most."""

    def __init__(self, options: VideoOptions, play: Play) -> None:
        slots = [Slot(options) for _ in range(options.streams)]
        self._free: "queue.SimpleQueue[Tuple[int, Slot]]" = queue.SimpleQueue()
        for free in enumerate(slots):
            self._free.put(free)
        self._starter, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            _Starter(theirs, slots, play).run()
        theirs.close()

    def start(self, number: int, given: Any, pictures: bool) -> "Player":
        """Plays an address, or the bytes of a file. `number` is that of the frame before. Raises Refusal."""
        place, slot = self._free.get()
        slot.counts.begin(number)
        try:
            line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                passed = array.array("i", [theirs.fileno()])
                self._starter.sendmsg([b"%d" % place], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        except ConnectionError:
            # Something has killed the starter, which itself runs nothing of strangers. The server starts the instance
            # again.
            os.kill(os.getpid(), signal.SIGKILL)
        except OSError as failure:
            self._free.put((place, slot))
            raise Refusal(f"no process can be started for the source: {failure.strerror}", codes.UNAVAILABLE) from None
        return Player(line, slot, lambda: self._free.put((place, slot)), given, pictures)


class Player:
    """The stub's end of a player."""

    def __init__(
        self, line: socket.socket, slot: Slot, release: Callable[[], None], given: Any, pictures: bool
    ) -> None:
        self._line = line
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self._slot = slot
        self._release = release
        self.counts = slot.counts
        self.picture = slot.picture
        is_address = isinstance(given, str)
        try:
            line.send(messages.pack((given if is_address else len(given), pictures)))
            for start in range(0, 0 if is_address else len(given), MOST_BYTES):
                line.send(given[start : start + MOST_BYTES])
        except ConnectionError:
            pass  # it has died, which the next record says
        except BaseException:
            self.close()
            raise

    def receive(self) -> Optional[Record]:
        """The next record; None where none has come for a moment. Raises Refusal when the player has died."""
        if not self._poll.poll(_TURN_MS):
            return None
        try:
            record = self._line.recv(2 * MOST_BYTES)
        except ConnectionResetError:
            return None  # the player has died without reading all. Its records come behind this
        kind, *fields = messages.unpack(record) if record else (DIED, -signal.SIGKILL)
        if kind == DIED:
            (status,) = fields
            how = f"was ended by {_signal(-status)}" if status < 0 else f"exited with {status}"
            raise Refusal(f"the process that reads the source {how}", codes.UNAVAILABLE)
        return (kind, *fields)

    def go_on(self, sent: bool) -> None:
        """The last frame has been passed on, or could not be, and there is room for another one."""
        with contextlib.suppress(ConnectionError):
            self._line.send(b"\1" if sent else b"\0")

    def close(self) -> Tuple[int, List[int]]:
        """Has the player killed, and waits for its death; the number of the last frame, and the gap behind it."""
        with contextlib.suppress(OSError), self._line:
            self._line.shutdown(socket.SHUT_WR)
            while self._line.recv(2 * MOST_BYTES):
                pass
        last = (self.counts.number, self.counts.gap)
        self._slot.clear()
        self._release()
        return last


class _Starter:
    """The process that forks the players. It has their sockets, too, and tells of their deaths."""

    def __init__(self, line: socket.socket, slots: Sequence[Slot], play: Play) -> None:
        self._line = line
        self._slots = slots
        self._play = play
        # By the number of its socket's descriptor: a player's process and the socket
        self._players: Dict[int, Tuple[int, socket.socket]] = {}
        self._poll = select.poll()

    def run(self) -> NoReturn:
        """Returns to nobody: it ends with the stub."""
        try:
            self._prepare()
            self._poll.register(self._line, select.POLLIN)
            deaths, told = os.pipe()
            for end in (deaths, told):
                os.set_blocking(end, False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.set_wakeup_fd(told, warn_on_full_buffer=False)
            self._poll.register(deaths, select.POLLIN)
            self._pipe = (deaths, told)
            while True:
                for number, _ in self._poll.poll():
                    if number == deaths:
                        os.read(deaths, MOST_BYTES)
                        self._bury()
                    elif number == self._line.fileno():
                        self._fork()
                    elif number in self._players:
                        # The process lives or has not been waited for, so the number is still its own.
                        self._poll.unregister(number)
                        os.kill(self._players[number][0], signal.SIGKILL)
        finally:
            os._exit(1)

    def _prepare(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The descriptors are the stub's. Their numbers stay taken, so that no object of the stub closes another file.
        null = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (1, 2, null, self._line.fileno()):
                os.dup2(null, int(name))

    def _fork(self) -> None:
        place, passed, _, _ = self._line.recvmsg(16, socket.CMSG_SPACE(4))
        if not place:
            os._exit(0)  # the stub has gone, and the players follow
        if not passed:
            return  # there was no descriptor left; the stub sees that its socket has ended
        (descriptor,) = array.array("i", passed[0][2])
        line = socket.socket(fileno=descriptor)
        starter = os.getpid()
        try:
            process = os.fork()
        except OSError as failure:
            _tell(line, ("refused", f"no process can be started for the source: {failure.strerror}", codes.UNAVAILABLE))
            line.close()
            return
        if not process:
            try:
                self._become_player(starter)
                self._play(line, self._slots[int(place)])
            finally:
                os._exit(0)
        self._players[descriptor] = (process, line)
        self._poll.register(line, select.POLLRDHUP)

    def _become_player(self, starter: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:
            os._exit(0)
        for _, other in self._players.values():
            other.close()
        self._line.close()
        null = os.open(os.devnull, os.O_RDWR)
        # Where PyAV has an exception that FFmpeg has gone on after, it prints it.
        for number in (*self._pipe, 1, 2):
            os.dup2(null, number)

    def _bury(self) -> None:
        while self._players:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            for number, (known, line) in list(self._players.items()):
                if known == process:
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(number)
                    del self._players[number]
                    how = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    _tell(line, (DIED, how))
                    line.close()


def _tell(line: socket.socket, record: Record) -> None:
    with contextlib.suppress(OSError):  # the stub does not listen any more, or reads too slowly
        line.send(messages.pack(record), socket.MSG_DONTWAIT)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
