"""Reads a trace with Perfetto's own published schema, and holds it against the rules of its reference.

Prints what is in it, for a test to compare.
"""

import collections
import json
import sys

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

CLEARED = schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDED = schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
BOOTTIME = 6
# Of the interned data, what an event, a stack and a frame refer to.
TABLES = ["event_names", "function_names", "frames", "callstacks"]


def strict(message):
    """No field is there that the schema does not have."""
    assert not len(UnknownFieldSet(message)), message
    for _, value in message.ListFields():
        if isinstance(value, Message):
            strict(value)
        elif not isinstance(value, (str, bytes, int, float)):
            for part in value:
                if isinstance(part, Message):
                    strict(part)


class Reader:
    def __init__(self):
        self.interned = {name: {} for name in TABLES}
        self.tracks, self.counters, self.open = {}, set(), collections.defaultdict(list)
        self.last_ns, self.clock, self.snapshots = 0, None, set()
        self.values, self.slices, self.instants = collections.defaultdict(list), [], []
        self.stacks, self.cleared = 0, False

    def packet(self, packet):
        assert packet.trusted_packet_sequence_id == 1
        cleared = bool(packet.sequence_flags & CLEARED)
        assert cleared == packet.incremental_state_cleared
        self.cleared |= cleared
        if packet.HasField("clock_snapshot"):
            self.snapshots |= {clock.clock_id for clock in packet.clock_snapshot.clocks}
        if packet.HasField("trace_packet_defaults"):
            assert cleared, "defaults hold from where the state is cleared"
            self.clock = packet.trace_packet_defaults.timestamp_clock_id
        if packet.HasField("interned_data"):
            assert self.cleared
            self.intern(packet.interned_data)
        if packet.HasField("track_descriptor"):
            self.track(packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.sequence_flags & NEEDED and self.cleared, "interned data counts where it is asked for"
            self.event(packet.timestamp, packet.track_event)

    def intern(self, data):
        for name in TABLES:
            for entry in getattr(data, name):
                assert entry.iid and entry.iid not in self.interned[name], (name, entry.iid)
                self.interned[name][entry.iid] = entry
        for frame in data.frames:
            assert frame.function_name_id in self.interned["function_names"]
        for stack in data.callstacks:
            assert all(frame in self.interned["frames"] for frame in stack.frame_ids) and stack.frame_ids

    def track(self, track):
        assert track.uuid and track.uuid not in self.tracks
        assert not track.HasField("parent_uuid") or track.parent_uuid in self.tracks
        name = track.process.process_name if track.HasField("process") else track.name
        above = self.tracks.get(track.parent_uuid)
        self.tracks[track.uuid] = f"{above}/{name}" if above else name
        if track.HasField("counter"):
            assert track.counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
            self.counters.add(track.uuid)

    def event(self, time_ns, event):
        kind = schema.TrackEvent.Type.Name(event.type)
        assert time_ns >= self.last_ns, "times of one sequence never run backwards"
        self.last_ns = time_ns
        path = self.tracks[event.track_uuid]
        assert (event.track_uuid in self.counters) == (kind == "TYPE_COUNTER"), (path, kind)
        if kind == "TYPE_COUNTER":
            return self.values[path].append(event.counter_value)
        if event.HasField("callstack_iid"):
            assert event.callstack_iid in self.interned["callstacks"]
            self.stacks += 1
        if kind == "TYPE_SLICE_END":
            return self.slices.append((path, self.open[event.track_uuid].pop()))
        name = self.interned["event_names"][event.name_iid].name
        assert all(note.name for note in event.debug_annotations)
        if kind == "TYPE_SLICE_BEGIN":
            return self.open[event.track_uuid].append(name)
        assert kind == "TYPE_INSTANT", kind
        return self.instants.append((path, name))


def main():
    trace = schema.Trace()
    with open(sys.argv[1], "rb") as file:
        trace.ParseFromString(file.read())
    strict(trace)
    reader = Reader()
    for packet in trace.packet:
        reader.packet(packet)
    assert not any(reader.open.values()), "slices that never end"
    assert reader.clock in reader.snapshots and BOOTTIME in reader.snapshots, "a clock that the importer cannot convert"
    count = lambda pairs: dict(collections.Counter(path for path, _ in pairs))
    print(json.dumps({
        "counters": {path: [max(values), values[-1]] for path, values in reader.values.items()},
        "slices": count(reader.slices),
        "instants": count(reader.instants),
        "names": sorted({name for _, name in reader.slices + reader.instants}),
        "stacks": reader.stacks,
    }))


main()
