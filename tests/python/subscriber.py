"""Subscribes to an agent's KV events with libzmq, as a stock router would: EVENTS REPLAY.

Prints `subscribed`, waits for a prompt's blocks, checks frames and payload, then asks for all of
it again on the replay socket and compares.
"""

import struct
import sys

import msgpack
import zmq

events, replay = sys.argv[1:]
context = zmq.Context()
socket = context.socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"kv-events")
socket.setsockopt(zmq.RCVTIMEO, 60_000)
monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
socket.connect(events)
monitor.recv_multipart()
print("subscribed", flush=True)


def decode(topic, sequence, payload):
    """Numbers and events of one message."""
    assert topic.startswith(b"kv-events/"), topic
    timestamp, batch, rank = msgpack.unpackb(payload, strict_map_key=False)
    assert timestamp > 1.6e9 and rank == 0
    return struct.unpack(">Q", sequence)[0], batch


live, blocks = [], 0
while blocks < 6:
    frames = socket.recv_multipart()
    assert len(frames) == 3, frames
    number, batch = decode(*frames)
    live.append((number, batch))
    for event in batch:
        assert event["type"] in ("BlockStored", "BlockRemoved", "AllBlocksCleared"), event
        if event["type"] == "BlockStored":
            assert len(event["token_ids"]) == event["block_size"] * len(event["block_hashes"])
            assert event["medium"] == "GPU"
            blocks += len(event["block_hashes"])
assert [number for number, _ in live] == list(range(live[0][0], live[0][0] + len(live)))

dealer = context.socket(zmq.DEALER)
dealer.setsockopt(zmq.RCVTIMEO, 60_000)
dealer.connect(replay)
dealer.send_multipart([b"", struct.pack(">Q", 0)])
again = []
while True:
    delimiter, topic, sequence, payload = dealer.recv_multipart()
    assert delimiter == b""
    if sequence == b"\xff" * 8:
        assert (topic, payload) == (b"", b"")
        break
    again.append(decode(topic, sequence, payload))
assert again[0][0] == 0
assert all(message in again for message in live)
