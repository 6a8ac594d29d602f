//! The handshake of both sides: any request, any query, any answer, any address.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::ledger::assemble::Limits;
use sluice::ledger::client::Client;
use sluice::ledger::hub::Hub;
use sluice::ledger::query::{self, Range};
use sluice::ledger::session::{Connection, Server, Step};
use sluice::ledger::url::Url;

fuzz_target!(|bytes: &[u8]| {
    let mut hub = Hub::default();
    let mut connection = Connection::new(0);
    for part in bytes.chunks(1 + bytes.len() / 3) {
        connection.on_bytes(part, &hub, Server { run: "run", subscribers: 0 }, 0);
    }
    for _ in 0..8 {
        if matches!(connection.poll(&mut hub, 0), Step::End) {
            break;
        }
    }
    let mut client = Client::new(Range::TIP, Limits { chunk_bytes_max: 4096, ledger_bytes_max: 4096 }).expect("memory");
    let url = Url::parse("ws://h").expect("an address");
    client.connect(&url, None, [0; 24]);
    client.feed(bytes);
    let _ = client.poll();
    let _ = client.disconnected();
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(range) = query::parse(text) {
            assert!(range.end().is_none_or(|end| end >= range.start()));
        }
        if let Ok(url) = Url::parse(text) {
            let target = url.target(&Range::TIP);
            assert!(target.starts_with('/') && !target.contains(char::is_whitespace), "{target:?}");
            let (_, query) = target.split_once('?').expect("a query");
            assert_eq!(query::parse(query), Ok(Range::TIP), "{target:?}");
        }
    }
});
