"""Decodes a Perfetto file with Perfetto's own message definitions, as lines of text.

    python decode.py FILE

Lines, in order of CPU (or kind) and time:

    slice  CPU THREAD START_NS END_NS END_STATE PRIO
    waking CPU THREAD AT_NS
    event  THREAD AT_NS NAME
    count  TRACK AT_NS VALUE

Exits with 1 if the file contains a field that the definitions lack, or if the switches of a CPU
contradict each other.
"""

import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


def check_known(message):
    """Exits with an error if a message contains a field that the definitions lack."""
    for field in UnknownFieldSet(message):
        sys.exit(f"{message.DESCRIPTOR.name} has no field {field.field_number}")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                check_known(part)


def slices(cpu, events):
    """Yields a line for each interval in which a thread ran on a CPU."""
    since = None
    for event in events:
        if not event.HasField("sched_switch"):
            continue
        switch = event.sched_switch
        if since is not None:
            start, pid, name, prio = since
            if switch.prev_pid != pid:
                sys.exit(f"cpu{cpu}: {pid} was put on, {switch.prev_pid} taken off")
            if pid != 0:
                state = {0: "R", 1: "S"}[switch.prev_state]
                yield f"slice {cpu} {name} {start} {event.timestamp} {state} {prio}"
        since = event.timestamp, switch.next_pid, switch.next_comm, switch.next_prio
    if since is not None and since[1] != 0:
        sys.exit(f"cpu{cpu}: {since[2]} is never taken off")


def scheduling(trace):
    """Yields the lines for switches and wake-ups, CPU by CPU."""
    cpus = {}
    for packet in trace.packet:
        if packet.HasField("ftrace_events"):
            bundle = packet.ftrace_events
            times = [event.timestamp for event in bundle.event]
            if times != sorted(times):
                sys.exit(f"a bundle of cpu{bundle.cpu} is out of order")
            cpus.setdefault(bundle.cpu, []).extend(bundle.event)
    for cpu, events in sorted(cpus.items()):
        events.sort(key=lambda event: event.timestamp)
        yield from slices(cpu, events)
    for cpu, events in sorted(cpus.items()):
        for event in events:
            if event.HasField("sched_waking"):
                yield f"waking {cpu} {event.sched_waking.comm} {event.timestamp}"


def tracks(trace):
    """Yields the lines for events and counters on tracks."""
    names = {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid] = track.thread.thread_name or track.name
        if packet.HasField("track_event"):
            event = packet.track_event
            name = names[event.track_uuid]
            if event.type == TrackEvent.TYPE_INSTANT:
                yield f"event {name} {packet.timestamp} {event.name}"
            else:
                yield f"count {name} {packet.timestamp} {event.counter_value}"


def main():
    trace = Trace()
    with open(sys.argv[1], "rb") as file:
        trace.ParseFromString(file.read())
    check_known(trace)
    for packet in trace.packet:
        for process in packet.process_tree.processes:
            print("process", process.pid, process.cmdline[0])
        for thread in packet.process_tree.threads:
            print("thread", thread.tgid, thread.tid, thread.name)
    for line in scheduling(trace):
        print(line)
    for line in tracks(trace):
        print(line)


main()
