"""The control socket is usable from everywhere, finalizers included."""

from __future__ import annotations

import socket
import subprocess
import sys

from stubserve_stub.wire.messages import Unframer, frame

THREADS = 4
MESSAGES = 300

# The process ends with the socket, as a stub does.
SENDERS = f"""
import gc, sys, threading
from stubserve_stub.runtime.control import Control

class Cycle:
    "Garbage that tells of its death over the control socket."

    def __init__(self, number):
        self.me = self
        self.number = number

    def __del__(self):
        control.send("gone", number=self.number)

def send(thread):
    for number in range({MESSAGES}):
        Cycle(thread * {MESSAGES} + number)
        control.send("said", thread=thread, number=number)
    gc.collect()

control = Control(int(sys.argv[1]))
gc.set_threshold(1)  # so that finalizers run everywhere
threads = [threading.Thread(target=send, args=(thread,)) for thread in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
control.send("done")
control.inbox.get()
"""


# Has no stderr any more when the server goes.
ALONE = """
import os, sys, threading
from stubserve_stub.runtime.control import Control

Control(int(sys.argv[1]))
sys.stderr.close()
print("closed", flush=True)
threading.Event().wait(30)
os._exit(7)
"""


def test_without_a_server_the_process_ends_whatever_has_become_of_stderr() -> None:
    ours, theirs = socket.socketpair()
    stub = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    assert stub.stdout is not None
    assert stub.stdout.readline() == b"closed\n"
    ours.close()
    assert stub.wait(60) == 1
    stub.stdout.close()


def test_finalizers_may_send_in_the_middle_of_sending() -> None:
    ours, theirs = socket.socketpair()
    # Small, so that senders wait for each other.
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    ours.settimeout(60)
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDERS, str(theirs.fileno())], pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL
    )
    theirs.close()
    unframer = Unframer()
    said: list[tuple[int, int]] = []
    gone: set[int] = set()
    try:
        message = None
        while message is None or message["kind"] != "done":
            data = ours.recv(65536)
            assert data
            unframer.feed(data)
            while (message := unframer.next()) is not None:
                if message["kind"] == "said":
                    said.append((message["thread"], message["number"]))
                elif message["kind"] == "gone":
                    gone.add(message["number"])
                else:
                    break
    finally:
        ours.close()
        sender.wait(60)
    assert gone == set(range(THREADS * MESSAGES))
    # Each thread's messages arrive in its order.
    for thread in range(THREADS):
        assert [number for by, number in said if by == thread] == list(range(MESSAGES))


# Leaves a seat while one of its messages is handled. At each comparison of its number another seat hears of something,
# as on another thread.
SEATS = """
import itertools, sys, threading, time
from stubserve_stub.runtime.control import Control, Line

control = Control(int(sys.argv[1]))
others = itertools.count(10)

class Left(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        control.handle("cancel", print, next(others))
        return int(self) == other

began = threading.Event()
heard = []

def give_back(message):
    began.set()
    time.sleep(0.2)
    heard.append(message)

line = Line(control, Left(1))
line.handle("cancel", print)
line.handle("give_back", give_back)
control.send("taken")
began.wait()
line.close()
control.send("left", heard=len(heard))
control.inbox.get()
"""


def test_a_seat_is_left_while_others_are_taken_and_a_message_is_handled() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", SEATS, str(theirs.fileno())]
        seats = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.settimeout(60)
        unframer = Unframer()
        try:
            unframer.feed(ours.recv(4096))
            assert unframer.next() == {"kind": "taken"}
            ours.sendall(frame({"kind": "give_back", "seat": 1}))
            unframer.feed(ours.recv(4096))
        finally:
            ours.close()
            _, stderr = seats.communicate()
        assert unframer.next() == {"kind": "left", "heard": 1}, stderr
