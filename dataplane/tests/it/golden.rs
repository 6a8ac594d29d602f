//! Real captures against the outputs that decoders of others made of them, field for field.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sluice::capture::source::file::FileSource;
use sluice::feed::messages::{Message, MessageError, Symbol};
use sluice::feed::rows::{COLUMNS, Decoder, RowFormat, RunCounter};
use sluice::wire::packet::{UdpView, udp};
use sluice::wire::segment::{Protocol, SegmentError, SegmentKind};
use sluice::wire::{iextp, moldudp64};

use crate::common;
use crate::sources::read_all;

fn open(path: &Path) -> FileSource {
    FileSource::open(path.to_str().expect("UTF-8")).unwrap_or_else(|error| panic!("{error}"))
}

fn gunzip(path: &Path) -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    flate2::read::MultiGzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    text
}

/// The IEX captures of the manifest: file and what must come out.
fn captures(data: &Path) -> Vec<(PathBuf, String)> {
    let text = std::fs::read_to_string(data.join("MANIFEST.tsv")).expect("a manifest");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let rows = rows.iter().filter(|row| row[0].starts_with("iex/") && row[7].contains("messages.csv"));
    rows.map(|row| (data.join(row[0]), row[7].to_string())).collect()
}

/// The golden beside a capture: `golden/NAME.KIND.csv.gz`, NAME without `.gz`.
fn golden(capture: &Path, kind: &str) -> String {
    let name = capture.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    let name = name.strip_suffix(".gz").unwrap_or(name);
    gunzip(&capture.parent().expect("a folder").join("golden").join(format!("{name}.{kind}.csv.gz")))
}

fn assert_same_lines(what: &str, got: &str, want: &str) {
    for (line, (got, want)) in got.lines().zip(want.lines()).enumerate() {
        assert_eq!(got, want, "{what} line {}", line + 1);
    }
    assert_eq!(got.lines().count(), want.lines().count(), "{what}: lines");
    assert!(got == want, "{what}: bytes between the lines");
}

/// The rows of a capture.
fn rows(path: &Path, protocol: Protocol, format: RowFormat) -> (String, Decoder) {
    let mut source = open(path);
    let mut decoder = Decoder::new(protocol, format);
    let mut out = Vec::new();
    decoder.header(&mut out);
    while let Some(packet) = source.next().expect("readable") {
        decoder.frame(packet.index, packet.data, packet.link, &mut out);
    }
    (String::from_utf8(out).expect("rows are ASCII"), decoder)
}

#[test]
fn messages_equal_the_golden_field_for_field() {
    let Some(data) = common::data() else { return };
    let files = captures(&data);
    assert_eq!(files.len(), 13);
    for (path, stated) in files {
        let what = path.display().to_string();
        let want = golden(&path, "messages");
        let (got, decoder) = rows(&path, Protocol::IexTp, RowFormat::Csv);
        assert_same_lines(&what, &got, &want);
        let counts = decoder.counts();
        let (segments, heartbeats) = (counts.segments + counts.heartbeats, counts.heartbeats);
        assert!(
            stated.starts_with(&format!("{segments} segments ({heartbeats} heartbeats), {} messages", counts.messages)),
            "{what}: {counts:?} but {stated}"
        );
        assert_eq!((counts.unknown, counts.short), (0, 0), "{what}");
        assert_eq!(counts.frames, segments, "{what}: every frame is a segment");
        assert!(stated.contains(&types(&got)), "{what}: {} but {stated}", types(&got));
    }
}

/// The messages by type as the manifest writes them: `A=642 B=3 …`.
fn types(rows: &str) -> String {
    let mut types = BTreeMap::new();
    for row in rows.lines().skip(1) {
        *types.entry(row.split(',').nth(4).expect("a type")).or_insert(0) += 1;
    }
    types.iter().map(|(kind, count)| format!("{kind}={count}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn segments_equal_the_golden_field_for_field() {
    let Some(data) = common::data() else { return };
    for (path, _) in captures(&data) {
        let mut got = String::from(
            "packet,capture_ts_ns,caplen,origlen,src_ip,src_port,dst_ip,dst_port,protocol_id,channel_id,session_id,run,\
             payload_len,msg_count,stream_offset,first_seq,send_time_ns\n",
        );
        let mut runs = RunCounter::default();
        let mut source = open(&path);
        while let Some(packet) = source.next().expect("readable") {
            let view: UdpView<'_> = udp(packet.data, packet.link).expect("UDP");
            let segment = iextp::parse(view.payload).expect("a segment");
            let header = iextp::Header::read(view.payload).expect("a header");
            assert_eq!(header.encode(), view.payload[..iextp::HEADER_BYTES], "the header is written as it was read");
            let session = segment.session;
            got += &format!(
                "{},{},{},{},{},{},{},{},0x{:04x},{},{},{},{},{},{},{},{}\n",
                packet.index,
                packet.capture_ns,
                packet.data.len(),
                packet.original_bytes,
                view.src,
                view.src_port,
                view.dst,
                view.dst_port,
                session.protocol_id,
                session.channel,
                session.session_text(),
                runs.run(&segment),
                segment.block.len(),
                segment.count,
                segment.offset.expect("IEX-TP has offsets"),
                segment.first,
                segment.send_ns.expect("IEX-TP has send times"),
            );
            let kind = if segment.count == 0 { SegmentKind::Heartbeat } else { SegmentKind::Data };
            assert_eq!(segment.kind, kind);
            assert_eq!(segment.messages().count(), segment.count as usize);
        }
        assert_same_lines(&path.display().to_string(), &got, &golden(&path, "segments"));
    }
}

/// One JSON string, number or null, as the CSV shows it.
fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[test]
fn jsonl_holds_what_csv_holds() {
    let Some(data) = common::data() else { return };
    for name in ["example1.pcap", "DEEP10.first-7884.pcap.gz"] {
        let path = data.join("iex").join(name);
        let (csv, _) = rows(&path, Protocol::IexTp, RowFormat::Csv);
        let (jsonl, _) = rows(&path, Protocol::IexTp, RowFormat::Jsonl);
        assert_eq!(jsonl.lines().count(), csv.lines().count() - 1);
        for (json, csv) in jsonl.lines().zip(csv.lines().skip(1)) {
            let object: serde_json::Value = serde_json::from_str(json).expect("JSON");
            let object = object.as_object().expect("an object");
            assert_eq!(object.len(), COLUMNS.len());
            let values: Vec<String> = COLUMNS.iter().map(|name| plain(&object[*name])).collect();
            assert_eq!(values.join(","), csv);
        }
    }
}

#[test]
fn bare_messages_and_a_bare_segment_are_read() {
    let Some(data) = common::data() else { return };
    let dump = |name: &str| std::fs::read(data.join("iex/dump").join(name)).expect("a dump");
    let symbol = |text: &str| {
        let mut bytes = [b' '; 8];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Symbol(bytes)
    };

    let bytes = dump("BigTopsSegment.dump");
    let segment = iextp::parse(&bytes).expect("a segment");
    assert_eq!((segment.session.protocol_id, segment.session.session.as_u32()), (iextp::TOPS_1_6, 0x4442_0000));
    assert_eq!((segment.block.len(), segment.count, segment.offset, segment.first), (1417, 52, Some(8514), 314));
    assert_eq!(segment.send_ns, Some(1_509_795_046_075_055_236));
    let kinds: Vec<u8> = segment.messages().map(|body| body[0]).collect();
    assert_eq!(kinds, b"POHQ".repeat(13));

    let check = |name: &str, kind: u8, flags: u8, timestamp_ns: i64, text: &str| {
        let bytes = dump(name);
        let message = Message::decode(&bytes).expect("a message");
        assert_eq!((message.kind(), message.flags(), message.timestamp_ns()), (kind, flags, timestamp_ns), "{name}");
        assert_eq!(message.symbol(), (!text.is_empty()).then(|| symbol(text)), "{name}");
        bytes
    };
    check("IEXOperationalHaltStatusMessage.dump", b'O', b'N', 1_509_795_046_074_896_417, "AA");
    check("IEXSecurityEventMessage.dump", b'E', b'O', 1_509_802_200_000_227_375, "ACRX");
    check("IEXSystemEventMessage.dump", b'S', b'S', 1_509_796_800_105_932_526, "");
    let bytes = check("IEXPriceLevelUpdateMessage.dump", b'8', 1, 1_509_799_810_232_574_926, "ZXIET");
    let Ok(Message::PriceLevel(level)) = Message::decode(&bytes) else { panic!("a price level") };
    assert_eq!((level.size(), level.price()), (5431, 999_100));
    let bytes = check("IEXQuoteUpdateMessage.dump", b'Q', 64, 1_509_795_046_074_879_944, "A");
    let Ok(Message::QuoteUpdate(quote)) = Message::decode(&bytes) else { panic!("a quote") };
    assert_eq!((quote.bid_size(), quote.bid_price(), quote.ask_price(), quote.ask_size()), (0, 0, 0, 0));
    let bytes = check("IEXShortSalePriceTestStatusMessage.dump", b'P', 1, 1_509_797_834_359_025_726, "ACET");
    let Ok(Message::ShortSale(status)) = Message::decode(&bytes) else { panic!("a short sale status") };
    assert_eq!(status.detail(), b"N");
    let bytes = check("IEXTradeReportMessage.dump", b'T', 192, 1_509_799_811_101_738_406, "ZXIET");
    let Ok(Message::TradeReport(trade)) = Message::decode(&bytes) else { panic!("a trade") };
    assert_eq!((trade.size(), trade.price(), trade.trade_id()), (471, 999_500, 3_914_566));
    let bytes = check("IEXTradingStatusMessage.dump", b'H', b'H', 1_509_797_845_011_734_394, "ZWZZT");
    let Ok(Message::TradingStatus(status)) = Message::decode(&bytes) else { panic!("a trading status") };
    assert_eq!(status.reason(), b"NA  ");
}

/// A body of `kind` whose every byte after the type is its own position.
fn counting_body(kind: u8, bytes: usize) -> Vec<u8> {
    let mut body: Vec<u8> = (0..bytes as u8).collect();
    body[0] = kind;
    body
}

#[test]
fn every_type_takes_longer_bodies_and_refuses_shorter_ones() {
    // Type and length: the specification's table.
    let table: &[(u8, usize)] = &[
        (b'S', 10),
        (b'D', 31),
        (b'H', 22),
        (b'I', 18),
        (b'O', 18),
        (b'P', 19),
        (b'E', 18),
        (b'8', 30),
        (b'5', 30),
        (b'Q', 42),
        (b'T', 38),
        (b'B', 38),
        (b'X', 26),
        (b'A', 80),
    ];
    for &(kind, needed) in table {
        let body = counting_body(kind, needed + 4);
        let fields = |body: &[u8]| {
            let mut fields = Vec::new();
            let message = Message::decode(body).expect("a whole body");
            assert_eq!((message.kind(), message.flags()), (kind, 1));
            assert_eq!(message.timestamp_ns(), i64::from_le_bytes([2, 3, 4, 5, 6, 7, 8, 9]));
            message.fields(|name, value| fields.push(format!("{name}={value:?}")));
            fields
        };
        // TOPS 1.5 trades carry four reserved bytes; any type may grow.
        assert_eq!(fields(&body), fields(&body[..needed]), "{}", char::from(kind));
        for bytes in 1..needed {
            let error = Message::decode(&body[..bytes]).expect_err("a short body");
            assert_eq!(error, MessageError::Short { kind, bytes, needed });
        }
    }
    assert_eq!(Message::decode(&[]), Err(MessageError::Empty));
    for kind in 0..=255u8 {
        if !table.iter().any(|(known, _)| *known == kind) {
            assert_eq!(Message::decode(&[kind; 100]), Err(MessageError::Unknown { kind }));
        }
    }
}

#[test]
fn every_field_stands_where_the_specification_says() {
    // Each field's first byte is its position, so that a value tells where it was read.
    let u32_at = |at: u8| u32::from_le_bytes([at, at + 1, at + 2, at + 3]);
    let i64_at = |at: u8| i64::from_le_bytes(std::array::from_fn(|index| at + index as u8));
    let symbol = Some(Symbol(std::array::from_fn(|index| 10 + index as u8)));
    let body = counting_body(b'A', 80);
    let Ok(Message::AuctionInformation(auction)) = Message::decode(&body) else { panic!("an auction") };
    assert_eq!(Some(auction.symbol()), symbol);
    assert_eq!((auction.paired_shares(), auction.imbalance_shares()), (u32_at(18), u32_at(38)));
    assert_eq!((auction.reference_price(), auction.indicative_clearing_price()), (i64_at(22), i64_at(30)));
    assert_eq!((auction.imbalance_side(), auction.extension_number()), (&[42], 43));
    assert_eq!((auction.scheduled_auction_time(), auction.auction_book_clearing_price()), (u32_at(44), i64_at(48)));
    assert_eq!((auction.collar_reference_price(), auction.lower_auction_collar_price()), (i64_at(56), i64_at(64)));
    assert_eq!(auction.upper_auction_collar_price(), i64_at(72));
    let body = counting_body(b'D', 31);
    let Ok(Message::SecurityDirectory(security)) = Message::decode(&body) else { panic!("a directory entry") };
    assert_eq!((security.round_lot_size(), security.adjusted_poc_close()), (u32_at(18), i64_at(22)));
    assert_eq!(security.luld_tier(), 30);
    let body = counting_body(b'Q', 42);
    let Ok(Message::QuoteUpdate(quote)) = Message::decode(&body) else { panic!("a quote") };
    assert_eq!((quote.bid_size(), quote.bid_price()), (u32_at(18), i64_at(22)));
    assert_eq!((quote.ask_price(), quote.ask_size()), (i64_at(30), u32_at(38)));
    let body = counting_body(b'X', 26);
    let Ok(Message::OfficialPrice(official)) = Message::decode(&body) else { panic!("an official price") };
    assert_eq!(official.price(), i64_at(18));
    let body = counting_body(b'B', 42);
    let Ok(Message::TradeBreak(trade)) = Message::decode(&body) else { panic!("a trade break") };
    assert_eq!((trade.size(), trade.price(), trade.trade_id()), (u32_at(18), i64_at(22), i64_at(30)));
    assert_eq!(Message::decode(&counting_body(b'S', 10)).expect("a system event").symbol(), None);
}

#[test]
fn text_that_is_not_plain_is_escaped_once() {
    let mut body = counting_body(b'H', 22);
    body[2..10].copy_from_slice(&(-5i64).to_le_bytes());
    body[10..18].copy_from_slice(b"A,\"\\\x00B  ");
    body[18..22].copy_from_slice(b"\xff;, ");
    let header = iextp::Header { version: 1, protocol_id: iextp::DEEP_1_0, session: 1, count: 1, ..Default::default() };
    let mut block = Vec::new();
    iextp::write_message(&body, &mut block);
    let header = iextp::Header { payload_length: block.len() as u16, first: u64::MAX, ..header };
    let payload = [&header.encode()[..], &block].concat();
    let frame = crate::sources::frame_of(&payload);
    let rows = |format| {
        let mut out = Vec::new();
        let link = sluice::wire::packet::LinkType::Ethernet;
        Decoder::new(Protocol::IexTp, format).frame(7, &frame, link, &mut out);
        String::from_utf8(out).expect("ASCII")
    };
    let row = r#"7,0x00000001,0,18446744073709551615,H,-5,"A,""\x5c\x00B",1,,,,"reason=\xff;,""#;
    assert_eq!(rows(RowFormat::Csv), format!("{row}\n"));
    let object: serde_json::Value = serde_json::from_str(&rows(RowFormat::Jsonl)).expect("JSON");
    assert_eq!(object["symbol"], r#"A,"\x5c\x00B"#);
    assert_eq!(object["aux"], r"reason=\xff;,");
    assert_eq!(object["sequence"], u64::MAX);
}

#[test]
fn iextp_segments_are_refused_by_reason() {
    let segment = |change: &dyn Fn(&mut iextp::Header), block: &[u8]| {
        let mut header = iextp::Header {
            version: 1,
            protocol_id: iextp::DEEP_1_0,
            payload_length: block.len() as u16,
            ..Default::default()
        };
        change(&mut header);
        [&header.encode()[..], block].concat()
    };
    let block = [1, 0, b'x', 2, 0, b'y', b'z'];
    let whole = segment(&|header| header.count = 2, &block);
    let read = iextp::parse(&whole).expect("a segment");
    assert_eq!(read.messages().collect::<Vec<_>>(), [&b"x"[..], b"yz"]);
    let trailer = [&whole[..], &[0; 6]].concat();
    assert_eq!(iextp::parse(&trailer).expect("bytes beyond the payload length are ignored").block, block);
    let heartbeat = segment(&|_| {}, &[]);
    assert_eq!(iextp::parse(&heartbeat).expect("a heartbeat").kind, SegmentKind::Heartbeat);
    for (what, bytes, reason) in [
        ("39 bytes", whole[..39].to_vec(), SegmentError::Short),
        ("version 2", segment(&|header| (header.version, header.count) = (2, 2), &block), SegmentError::Version),
        ("cut", whole[..46].to_vec(), SegmentError::Length),
        ("a message less than stated", segment(&|header| header.count = 3, &block), SegmentError::Spans),
        ("bytes behind the last message", segment(&|header| header.count = 1, &block), SegmentError::Spans),
        ("a heartbeat with a payload", segment(&|_| {}, &block), SegmentError::Spans),
        ("a message beyond the payload", segment(&|header| header.count = 1, &[3, 0, 1]), SegmentError::Spans),
    ] {
        assert_eq!(iextp::parse(&bytes).err(), Some(reason), "{what}");
    }
    let mut moved = whole.clone();
    assert!(iextp::rewrite(&mut moved, 77, 88));
    let read = iextp::parse(&moved).expect("still a segment");
    assert_eq!((read.first, read.offset, read.block), (77, Some(88), &block[..]));
    assert!(!iextp::rewrite(&mut moved[..39], 0, 0));
}

#[test]
fn moldudp64_packets_are_read_by_kind() {
    let packet = |count: u16, block: &[u8]| {
        let header = moldudp64::Header { session: *b"SESSION   ", sequence: 9, count };
        [&header.encode()[..], block].concat()
    };
    let block = [0, 1, b'x', 0, 2, b'y', b'z'];
    let bytes = packet(2, &block);
    let read = moldudp64::parse(&bytes).expect("a packet");
    assert_eq!((read.kind, read.first, read.count, read.offset, read.send_ns), (SegmentKind::Data, 9, 2, None, None));
    assert_eq!(read.messages().collect::<Vec<_>>(), [&b"x"[..], b"yz"]);
    assert_eq!(read.session.to_string(), "moldudp64/SESSION");
    let bytes = packet(1, &block);
    assert_eq!(moldudp64::parse(&bytes).expect("what follows is ignored").block, &block[..3]);
    assert_eq!(moldudp64::parse(&packet(0, &[])).expect("a heartbeat").kind, SegmentKind::Heartbeat);
    let end = packet(moldudp64::END_OF_SESSION, &[]);
    let end = moldudp64::parse(&end).expect("an end");
    assert_eq!((end.kind, end.count), (SegmentKind::EndOfSession, 0));
    assert_eq!(moldudp64::parse(&packet(2, &[])[..19]).err(), Some(SegmentError::Short));
    assert_eq!(moldudp64::parse(&packet(3, &block)).err(), Some(SegmentError::Spans));
    let mut moved = packet(2, &block);
    assert!(moldudp64::rewrite(&mut moved, 70));
    assert_eq!(moldudp64::parse(&moved).expect("still a packet").first, 70);
}

#[test]
fn the_real_moldudp64_file_is_read() {
    let Some(data) = common::data() else { return };
    let path = data.join("feeds/Nasdaq.Nasdaq.Equities.TotalView.Itch.v5.0.Multiple.Packets.pcap");
    let (packets, damage) = read_all(&mut open(&path));
    assert_eq!(damage, []);
    let segments: Vec<(u64, u32)> = packets
        .iter()
        .map(|packet| {
            let view = udp(&packet.data, packet.link).expect("UDP");
            assert_eq!((view.dst.to_string(), view.dst_port, view.vlan[0]), ("233.54.12.111".to_string(), 26_477, 141));
            let segment = moldudp64::parse(view.payload).expect("a MoldUDP64 packet");
            assert_eq!(segment.messages().count(), segment.count as usize);
            (segment.first, segment.count)
        })
        .collect();
    assert_eq!(segments.iter().map(|segment| segment.0).collect::<Vec<_>>(), [14_764_496, 19_009_117]);
    let (rows, decoder) = rows(&path, Protocol::MoldUdp64, RowFormat::Csv);
    let messages: u32 = segments.iter().map(|segment| segment.1).sum();
    assert_eq!((decoder.counts().messages, rows.lines().count()), (u64::from(messages), messages as usize + 1));
}

/// Packets, and packets by (destination, port), of a file in `feeds`.
fn groups(data: &Path, name: &str) -> (usize, BTreeMap<(IpAddr, u16), usize>) {
    let (packets, damage) = read_all(&mut open(&data.join("feeds").join(name)));
    assert_eq!(damage, [], "{name}");
    let mut groups = BTreeMap::new();
    for packet in &packets {
        let view = udp(&packet.data, packet.link).unwrap_or_else(|reason| panic!("{name}: {reason:?}"));
        *groups.entry((view.dst, view.dst_port)).or_insert(0) += 1;
    }
    (packets.len(), groups)
}

#[test]
fn feeds_of_other_exchanges_give_their_packets_and_groups() {
    let Some(data) = common::data() else { return };
    type Groups<'a> = &'a [(&'a str, u16, usize)];
    let stated: &[(&str, usize, Groups<'_>)] = &[
        (
            "Cme.Mdp3.Sbe.v1.6.Cme.Mdp3.Sbe.v6.1.pcap",
            10_000,
            &[("224.0.31.64", 14_340, 5_000), ("224.0.32.64", 15_340, 5_000)],
        ),
        ("Ice.Mdf.iMpact.v1.1.33.Ice.Mdf.iMpact.v1.1.33.Example.pcap", 8_680, &[("233.156.208.100", 20_100, 8_680)]),
        ("Miax.Tom.Mach.v1.9.Miax.Tom.Mach.v1.9.Example.pcap", 20_560, &[("224.0.105.2", 51_002, 20_560)]),
        ("Nasdaq.Nasdaq.Equities.TotalView.Itch.v5.0.Multiple.Packets.pcap", 2, &[("233.54.12.111", 26_477, 2)]),
    ];
    for (name, packets, want) in stated {
        let want: BTreeMap<(IpAddr, u16), usize> =
            want.iter().map(|(dst, port, count)| ((dst.parse().expect("an address"), *port), *count)).collect();
        assert_eq!(groups(&data, name), (*packets, want), "{name}");
    }
    let (packets, sides) = groups(&data, "Cme.Mdp3.Sbe.v1.8.MdIncrementalRefreshVolume.pcap");
    assert_eq!((packets, sides.values().copied().collect::<Vec<_>>()), (112, vec![56, 56]));
}

#[test]
fn cme_payloads_are_whole_and_equal_on_both_sides() {
    let Some(data) = common::data() else { return };
    let (packets, _) = read_all(&mut open(&data.join("feeds/Cme.Mdp3.Sbe.v1.6.Cme.Mdp3.Sbe.v6.1.pcap")));
    let mut sides: BTreeMap<u16, BTreeMap<u32, &[u8]>> = BTreeMap::new();
    for packet in &packets {
        let view = udp(&packet.data, packet.link).expect("UDP");
        let sequence = u32::from_le_bytes(*view.payload.first_chunk().expect("a sequence"));
        sides.entry(view.dst_port).or_default().insert(sequence, view.payload);
    }
    assert!(sides[&14_340] == sides[&15_340], "payload for payload");
    assert!(sides[&14_340].keys().copied().eq(5_615..=10_614), "complete");
}

#[test]
fn miax_datagrams_end_where_udp_says() {
    let Some(data) = common::data() else { return };
    let (packets, _) = read_all(&mut open(&data.join("feeds/Miax.Tom.Mach.v1.9.Miax.Tom.Mach.v1.9.Example.pcap")));
    let mut trailers = BTreeMap::new();
    let mut inner = 0;
    for packet in &packets {
        let view = udp(&packet.data, packet.link).expect("UDP");
        assert_eq!(view.vlan[0], 905);
        let behind = packet.data.len() - view.payload_offset as usize - view.payload.len();
        *trailers.entry(behind).or_insert(0) += 1;
        // MACH: sequence u64, length u16 of the whole packet; several per datagram fill it exactly.
        let mut rest = view.payload;
        while !rest.is_empty() {
            let length = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
            rest = &rest[length..];
            inner += 1;
        }
    }
    assert_eq!(trailers, BTreeMap::from([(4, 20_500), (10, 60)]));
    assert_eq!(inner, 50_952);
}

fn sluice(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn feed_decode_says_what_it_did_by_exit_code() {
    let Some(data) = common::data() else { return };
    let path = |name: &str| data.join("iex").join(name).to_str().expect("UTF-8").to_string();

    let good = sluice(&["feed", "decode", &path("TOPS16.pcapng.gz")]);
    assert_eq!((good.status.code(), text(&good.stderr)), (Some(0), String::new()));
    assert_eq!(text(&good.stdout), golden(Path::new(&path("TOPS16.pcapng.gz")), "messages"));

    let cut = sluice(&["feed", "decode", &path("example1.pcap"), "--format", "jsonl"]);
    assert_eq!((cut.status.code(), text(&cut.stdout).lines().count()), (Some(3), 53));
    let stderr = text(&cut.stderr);
    assert!(stderr.contains("example1.pcap: damage at offset 3480: the file ends inside a block"), "{stderr}");
    assert!(stderr.contains("1486 of 1532 bytes"), "{stderr}");

    let missing = sluice(&["feed", "decode", &path("no-such-file.pcap")]);
    assert_eq!((missing.status.code(), text(&missing.stdout)), (Some(4), String::new()));
    let stderr = text(&missing.stderr);
    assert!(stderr.contains("no-such-file.pcap: cannot open: No such file"), "{stderr}");

    let other = sluice(&["feed", "decode", data.join("README.md").to_str().expect("UTF-8")]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("not a pcap or pcapng file"), "{}", text(&other.stderr));
    assert_eq!(sluice(&["feed", "decode"]).status.code(), Some(2), "no file named");
}

#[test]
fn feed_decode_reads_standard_input() {
    let Some(data) = common::data() else { return };
    let file = std::fs::File::open(data.join("iex/example1.pcap")).expect("a capture");
    let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["feed", "decode", "-"])
        .stdin(file)
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), golden(&data.join("iex/example1.pcap"), "messages"));
    assert!(text(&output.stderr).contains("standard input: damage at offset 3480"), "{}", text(&output.stderr));
}
