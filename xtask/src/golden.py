"""Cuts a capture and writes what a foreign decoder (PyPI iex-parser 1.7.0, on scapy's readers) reads in it.

Arguments: CAPTURE, OUTPUT FOLDER, PACKETS (0: the file as it is). Run by `cargo xtask golden`.

Field values are those of iex_parser's decoder of one message; only its float time stamps are replaced by the integers
that it read.
"""

import gzip
import os
import struct
import sys

from iex_parser.messages import DEEP_1_0, TOPS_1_5, TOPS_1_6, decode_message
from iex_parser.parser import DeepPcapReader
from scapy.utils import RawPcapNgReader, RawPcapReader

PROTOCOLS = {0x8002: TOPS_1_5, 0x8003: TOPS_1_6, 0x8004: DEEP_1_0}
MESSAGE_COLUMNS = "packet,session_id,run,sequence,type,timestamp_ns,symbol,flags,price,size,trade_id,aux"
SEGMENT_COLUMNS = (
    "packet,capture_ts_ns,caplen,origlen,src_ip,src_port,dst_ip,dst_port,protocol_id,channel_id,session_id,run,"
    "payload_len,msg_count,stream_offset,first_seq,send_time_ns"
)
# What stands in columns of its own, and what byte 1 is called in each type: `flags` tells it as a number.
COLUMNS = {"type", "timestamp", "symbol", "price", "size", "trade_id", "side", "flags"}
BYTE_1 = {"event", "halt_status", "indicator", "price_type", "auction_type", "security_event", "status"}


def read(path):
    data = open(path, "rb").read()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def cut(data, packets):
    """The file's bytes up to its packet number `packets`, and how many packets that are."""
    magic = struct.unpack_from("<I", data)[0]
    count, at = 0, 0
    if magic == 0x0A0D0D0A:
        while at + 12 <= len(data) and count < packets:
            kind = struct.unpack_from("<I", data, at)[0]
            if kind == 0x0A0D0D0A:
                order = "<" if data[at + 8 : at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            kind, length = struct.unpack_from(order + "II", data, at)
            if length < 12 or at + length > len(data):
                break
            count += kind in (2, 3, 6)
            at += length
        return data[:at], count
    order = "<" if magic in (0xA1B2C3D4, 0xA1B23C4D) else ">"
    if struct.unpack_from(order + "I", data)[0] not in (0xA1B2C3D4, 0xA1B23C4D):
        sys.exit("neither pcap nor pcapng")
    at = 24
    while at + 16 <= len(data) and count < packets:
        length = 16 + struct.unpack_from(order + "I", data, at + 8)[0]
        if at + length > len(data):
            break
        count += 1
        at += length
    return data[:at], count


def packets(path):
    """(frame, capture time in ns, length on the wire) of each packet, by scapy."""
    if read(path)[:4] == b"\x0a\x0d\x0d\x0a":
        for frame, meta in RawPcapNgReader(path):
            ticks = (meta.tshigh << 32) | meta.tslow
            yield frame, ticks * 10**9 // meta.tsresol, meta.wirelen
        return
    reader = RawPcapReader(path)
    for frame, meta in reader:
        yield frame, meta.sec * 10**9 + meta.usec * (1 if reader.nano else 1000), meta.wirelen


def datagram(frame):
    """(source, source port, destination, destination port, payload) of Ethernet, IPv4, UDP; None for others."""
    at = 14
    while frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    if frame[at - 2 : at] != b"\x08\x00" or frame[at + 9] != 17:
        return None
    source, destination = (".".join(map(str, frame[at + o : at + o + 4])) for o in (12, 16))
    at += 4 * (frame[at] & 15)
    source_port, destination_port, length = struct.unpack_from(">HHH", frame, at)
    return source, source_port, destination, destination_port, frame[at + 8 : at + length]


def number(price):
    return int(price * 10**4)


def text(value):
    if isinstance(value, bytes):
        return value.decode("ascii")
    if hasattr(value, "timestamp"):
        return str(int(value.timestamp()))
    return str(number(value)) if type(value).__name__ == "Decimal" else str(value)


def row(protocol, body):
    """The columns from `type` on."""
    message = decode_message(protocol, body[0], body[1:])
    flags = body[1]
    if "flags" in message and isinstance(message["flags"], int):
        assert message["flags"] == flags
    aux = [f"{name}={text(value)}" for name, value in message.items() if name not in COLUMNS | BYTE_1]
    symbol = message["symbol"].decode("ascii") if "symbol" in message else ""
    price = number(message["price"]) if "price" in message else ""
    time = struct.unpack_from("<q", body, 2)[0]
    fields = [chr(body[0]), time, symbol, flags, price, message.get("size", ""), message.get("trade_id", "")]
    return fields + [";".join(aux)]


def main(source, folder, wanted):
    name = os.path.basename(source)
    path = source
    if wanted:
        data, count = cut(read(source), wanted)
        stem = name.removesuffix(".gz")
        root, extension = os.path.splitext(stem)
        name = f"{root}.first-{count}{extension}.gz"
        path = os.path.join(folder, name)
        write(path, data)
    runs, highest = {}, {}
    messages, segments = [MESSAGE_COLUMNS], [SEGMENT_COLUMNS]
    for index, (frame, captured, wire_length) in enumerate(packets(path)):
        udp = datagram(frame)
        if udp is None:
            continue
        payload = udp[4]
        header = struct.unpack_from(DeepPcapReader.HEADER_PATTERN, payload)
        _, protocol, channel, session, length, count, offset, first, sent = header
        key = (protocol, channel, session)
        if first == 1 and offset == 0 and highest.get(key, 1) > 1:
            runs[key] = runs.get(key, 0) + 1
            highest[key] = 1
        highest[key] = max(highest.get(key, 1), first + count)
        run = runs.get(key, 0)
        prefix = f"{index},0x{session:08x},{run}"
        addresses = f"{udp[0]},{udp[1]},{udp[2]},{udp[3]}"
        segments.append(
            f"{index},{captured},{len(frame)},{wire_length},{addresses},0x{protocol:04x},{channel},0x{session:08x},"
            f"{run},{length},{count},{offset},{first},{sent}"
        )
        at = DeepPcapReader.HEADER_SIZE
        for sequence in range(first, first + count):
            size = struct.unpack_from("<H", payload, at)[0]
            body = payload[at + 2 : at + 2 + size]
            at += 2 + size
            fields = row(PROTOCOLS[protocol], body)
            messages.append(",".join(map(str, [prefix, sequence] + fields)))
    golden = os.path.join(folder, "golden")
    os.makedirs(golden, exist_ok=True)
    stem = name.removesuffix(".gz")
    for kind, rows in (("messages", messages), ("segments", segments)):
        out = os.path.join(golden, f"{stem}.{kind}.csv.gz")
        write(out, ("\n".join(rows) + "\n").encode("ascii"))
        print(f"golden: {out}: {len(rows) - 1} {kind}")


def write(path, data):
    # Without a name and a time, so that the same content is the same file.
    with open(path, "wb") as out:
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as packed:
            packed.write(data)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
