//! The market behind a generated session: symbols with a best bid and offer that walk, and what happens to them, as
//! DEEP 1.0 or TOPS 1.6 messages (layouts: IEX's specifications of the two).

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use super::Product;

/// The longest body: Auction Information.
const BODY_BYTES_MAX: usize = 80;
/// Symbols: enough for a directory spin of several segments, few enough that each is hot.
const SYMBOLS_MAX: u64 = 64;
const SYMBOLS_MIN: u64 = 4;
/// Messages of a run for each symbol at least, so that the spin (five a symbol) stays a small part of a session.
const MESSAGES_PER_SYMBOL: u64 = 40;
/// The first symbols are listed on the exchange: they have auctions and official prices.
const LISTED: usize = 2;
/// One event in this many is a rare one (halt, break, auction …).
const RARE_EVERY: u64 = 40;
/// One cent in price units of 1e-4 USD.
const CENT: i64 = 100;
/// Scheduled auctions are told as whole seconds; this long after the message.
const AUCTION_IN_SECONDS: u32 = 300;
/// Most messages of one event. 8 × (2 + 80) bytes fit a segment.
const EVENT_MESSAGES_MAX: u64 = 8;

/// A number below `bound` (which is not 0). Multiplication, not remainder: the same on every machine, no bias to see.
pub(super) fn below(rng: &mut Pcg64Mcg, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// One message body: type, byte 1, timestamp and, save in System Event, symbol; then what the type adds.
#[derive(Clone, Copy)]
pub(super) struct Body {
    bytes: [u8; BODY_BYTES_MAX],
    length: usize,
}

impl Body {
    fn new(kind: u8, flags: u8, time_ns: i64, symbol: &[u8]) -> Body {
        let mut body = Body { bytes: [0; BODY_BYTES_MAX], length: 0 };
        body.add(&[kind, flags]).add(&time_ns.to_le_bytes()).add(symbol)
    }

    fn add(&mut self, field: &[u8]) -> Body {
        self.bytes[self.length..][..field.len()].copy_from_slice(field);
        self.length += field.len();
        *self
    }

    fn u32(mut self, value: u32) -> Body {
        self.add(&value.to_le_bytes())
    }

    fn price(mut self, value: i64) -> Body {
        self.add(&value.to_le_bytes())
    }

    fn u8(mut self, value: u8) -> Body {
        self.add(&[value])
    }

    /// The encoded body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Gives it another timestamp.
    pub(super) fn stamp(&mut self, time_ns: i64) {
        self.bytes[2..10].copy_from_slice(&time_ns.to_le_bytes());
    }
}

#[derive(Clone, Copy)]
struct Symbol {
    name: [u8; 8],
    bid: i64,
    spread: i64,
    halted: bool,
    round_lot: u32,
}

impl Symbol {
    fn ask(&self) -> i64 {
        self.bid + self.spread
    }
}

#[derive(Clone, Copy)]
struct Trade {
    symbol: usize,
    flags: u8,
    size: u32,
    price: i64,
    id: i64,
}

/// What rare events there are, in the order in which they take turns.
const RARE: [Rare; 8] = [
    Rare::Halt,
    Rare::ShortSale,
    Rare::Resume,
    Rare::Break,
    Rare::OperationalHalt,
    Rare::Auction,
    Rare::Retail,
    Rare::OperationalResume,
];

#[derive(Clone, Copy)]
enum Rare {
    Halt,
    Resume,
    ShortSale,
    Break,
    OperationalHalt,
    OperationalResume,
    Auction,
    Retail,
}

/// The market: its symbols and what has happened.
pub(super) struct Market {
    product: Product,
    rng: Pcg64Mcg,
    symbols: Vec<Symbol>,
    trade_id: i64,
    last_trade: Option<Trade>,
    /// Which of [`RARE`] comes next.
    rare: usize,
    /// Whose halts last.
    halted: usize,
    operational: usize,
}

impl Market {
    /// A market for runs of about `messages` messages.
    pub(super) fn new(product: Product, messages: u64, mut rng: Pcg64Mcg) -> Market {
        let count = (messages / MESSAGES_PER_SYMBOL).clamp(SYMBOLS_MIN, SYMBOLS_MAX);
        let symbols = (0..count as usize).map(|index| symbol(index, &mut rng)).collect();
        Market { product, rng, symbols, trade_id: 1_000, last_trade: None, rare: 0, halted: 0, operational: 0 }
    }

    /// The opening: start of messages, the state of each symbol, start of system hours, opening auctions, start of
    /// regular hours.
    pub(super) fn open(&mut self, now: i64, out: &mut Vec<Body>) {
        out.push(system(b'O', now));
        for index in 0..self.symbols.len() {
            let Symbol { name, bid, round_lot, .. } = self.symbols[index];
            self.symbols[index].halted = false;
            let flags = [0x00, 0x80, 0x20, 0x40][below(&mut self.rng, 4) as usize];
            let tier = below(&mut self.rng, 3) as u8;
            out.push(Body::new(b'D', flags, now, &name).u32(round_lot).price(bid).u8(tier));
            out.push(Body::new(b'H', b'T', now, &name).u32(u32::from_le_bytes(*b"    ")));
            out.push(Body::new(b'I', b' ', now, &name));
            out.push(Body::new(b'O', b'N', now, &name));
            out.push(Body::new(b'P', 0, now, &name).u8(b' '));
        }
        out.push(system(b'S', now));
        for index in 0..LISTED {
            out.push(self.auction(index, b'O', now));
            out.push(self.official(index, b'Q', now));
            self.security_event(index, b'O', now, out);
        }
        out.push(system(b'R', now));
    }

    /// How many messages [`Self::close`] writes.
    pub(super) fn close_messages(&self) -> u64 {
        let listed = LISTED as u64;
        match self.product {
            Product::Deep => 3 + 3 * listed,
            Product::Tops => 3 + 2 * listed,
        }
    }

    /// The close: end of regular hours, closing auctions, end of system hours, end of messages.
    pub(super) fn close(&mut self, now: i64, out: &mut Vec<Body>) {
        out.push(system(b'M', now));
        for index in 0..LISTED {
            out.push(self.auction(index, b'C', now));
            out.push(self.official(index, b'M', now));
            self.security_event(index, b'C', now, out);
        }
        out.push(system(b'E', now));
        out.push(system(b'C', now));
    }

    /// One event of one to eight messages, at most `room` (which is not 0).
    pub(super) fn event(&mut self, now: i64, room: u64, out: &mut Vec<Body>) {
        if room >= 2 && below(&mut self.rng, RARE_EVERY) == 0 {
            let rare = RARE[self.rare % RARE.len()];
            self.rare += 1;
            return self.rare_event(rare, now, out);
        }
        // 1.75 messages an event: real TOPS has 1.7 a packet.
        let wanted = match below(&mut self.rng, 100) {
            0..60 => 1,
            60..82 => 2,
            82..92 => 3,
            _ => 4 + below(&mut self.rng, EVENT_MESSAGES_MAX - 3),
        };
        let index = self.pick();
        self.walk(index);
        match (self.product, wanted.min(room)) {
            (Product::Deep, 1) => self.levels(index, 1, now, out),
            (Product::Deep, count) if below(&mut self.rng, 3) == 0 => {
                let side = self.trade(index, now, out);
                self.level(index, side, count == 2, 0, now, out);
                if count > 2 {
                    self.levels(index, count - 2, now, out);
                }
            }
            (Product::Deep, count) => self.levels(index, count, now, out),
            (Product::Tops, 1) if below(&mut self.rng, 3) == 0 => {
                self.trade(index, now, out);
            }
            (Product::Tops, count) => self.quotes(index, count, now, out),
        }
    }

    /// A symbol that trades. Half of the events go to an eighth of the symbols.
    fn pick(&mut self) -> usize {
        let all = self.symbols.len() as u64;
        let among = if below(&mut self.rng, 2) == 0 { (all / 8).max(2) } else { all };
        let index = below(&mut self.rng, among) as usize;
        // At most one symbol is halted at a time, so its neighbour trades.
        if self.symbols[index].halted { (index + 1) % self.symbols.len() } else { index }
    }

    /// Moves the bid a cent up or down now and then, and the spread with it.
    fn walk(&mut self, index: usize) {
        let step = [0, 0, 0, CENT, -CENT][below(&mut self.rng, 5) as usize];
        let spread = CENT * (1 + below(&mut self.rng, 4) as i64);
        let symbol = &mut self.symbols[index];
        symbol.bid = (symbol.bid + step).max(5 * CENT);
        symbol.spread = spread;
    }

    /// Shares: mostly round lots, sometimes odd ones.
    fn size(&mut self) -> u32 {
        match below(&mut self.rng, 8) {
            0 => 1 + below(&mut self.rng, 99) as u32,
            _ => 100 * (1 + below(&mut self.rng, 20) as u32),
        }
    }

    /// `count` price level updates; the last completes the event (bit 0).
    fn levels(&mut self, index: usize, count: u64, now: i64, out: &mut Vec<Body>) {
        for number in 1..=count {
            let side = if below(&mut self.rng, 2) == 0 { b'8' } else { b'5' };
            let depth = below(&mut self.rng, 5) as i64;
            self.level(index, side, number == count, depth, now, out);
        }
    }

    /// One price level update, `depth` cents behind the best price; one in six removes the level (size 0).
    fn level(&mut self, index: usize, side: u8, complete: bool, depth: i64, now: i64, out: &mut Vec<Body>) {
        let size = if below(&mut self.rng, 6) == 0 { 0 } else { self.size() };
        let symbol = &self.symbols[index];
        let price = match side {
            b'8' => (symbol.bid - depth * CENT).max(CENT),
            _ => symbol.ask() + depth * CENT,
        };
        out.push(Body::new(side, u8::from(complete), now, &symbol.name).u32(size).price(price));
    }

    /// A trade at the bid or the ask; the side of the book that it took from.
    fn trade(&mut self, index: usize, now: i64, out: &mut Vec<Body>) -> u8 {
        // Intermarket sweep, extended hours, odd lot, trade-through exempt, single-price cross.
        let flags = [0, 0, 0, 0x80, 0x40, 0x20, 0x10, 0x08][below(&mut self.rng, 8) as usize];
        let size = self.size();
        let side = if below(&mut self.rng, 2) == 0 { b'8' } else { b'5' };
        let symbol = self.symbols[index];
        let price = if side == b'8' { symbol.bid } else { symbol.ask() };
        self.trade_id += 1 + below(&mut self.rng, 40) as i64;
        let trade = Trade { symbol: index, flags, size, price, id: self.trade_id };
        self.last_trade = Some(trade);
        out.push(self.print(b'T', trade, now));
        side
    }

    fn print(&self, kind: u8, trade: Trade, now: i64) -> Body {
        let name = &self.symbols[trade.symbol].name;
        Body::new(kind, trade.flags, now, name).u32(trade.size).price(trade.price).price(trade.id)
    }

    /// `count` quotes of the symbol and its neighbours, a trade among them now and then.
    fn quotes(&mut self, first: usize, count: u64, now: i64, out: &mut Vec<Body>) {
        for number in 0..count as usize {
            let index = (first + number) % self.symbols.len();
            if number > 0 && number % 2 == 0 && !self.symbols[index].halted {
                self.trade(index, now, out);
                continue;
            }
            let (bid_size, ask_size) = (self.size(), self.size());
            let symbol = &self.symbols[index];
            let body = match symbol.halted {
                // Halted: no quote, and the flag that says why.
                true => Body::new(b'Q', 0x80, now, &symbol.name).u32(0).price(0).price(0).u32(0),
                false => Body::new(b'Q', 0, now, &symbol.name)
                    .u32(bid_size)
                    .price(symbol.bid)
                    .price(symbol.ask())
                    .u32(ask_size),
            };
            out.push(body);
        }
    }

    /// One or two messages.
    fn rare_event(&mut self, rare: Rare, now: i64, out: &mut Vec<Body>) {
        let index = self.pick();
        let name = self.symbols[index].name;
        match rare {
            Rare::Halt => {
                self.halted = index;
                self.symbols[index].halted = true;
                let (status, reason) = [(b'H', b"T1  "), (b'P', b"IPO1"), (b'H', b"MCB3")][self.rare / RARE.len() % 3];
                out.push(Body::new(b'H', status, now, &name).u32(u32::from_le_bytes(*reason)));
            }
            Rare::Resume => {
                let name = self.symbols[self.halted].name;
                self.symbols[self.halted].halted = false;
                out.push(Body::new(b'H', b'O', now, &name).u32(u32::from_le_bytes(*b"T3  ")));
                out.push(Body::new(b'H', b'T', now, &name).u32(u32::from_le_bytes(*b"NA  ")));
            }
            Rare::ShortSale => {
                let (status, detail) = [(1, b'A'), (1, b'C'), (0, b'D'), (1, b'N')][below(&mut self.rng, 4) as usize];
                out.push(Body::new(b'P', status, now, &name).u8(detail));
            }
            Rare::OperationalHalt => {
                self.operational = index;
                out.push(Body::new(b'O', b'O', now, &name));
            }
            Rare::OperationalResume => out.push(Body::new(b'O', b'N', now, &self.symbols[self.operational].name)),
            Rare::Auction => {
                let kind = [b'I', b'V', b'H', b'O', b'C'][below(&mut self.rng, 5) as usize];
                out.push(self.auction(index, kind, now));
            }
            Rare::Retail => {
                let indicator = [b'A', b'B', b'C', b' '][below(&mut self.rng, 4) as usize];
                out.push(Body::new(b'I', indicator, now, &name));
            }
            Rare::Break => match self.last_trade {
                Some(trade) => out.push(self.print(b'B', trade, now)),
                None => _ = self.trade(index, now, out),
            },
        }
    }

    fn auction(&mut self, index: usize, kind: u8, now: i64) -> Body {
        let (paired, imbalance) = (self.size() * 10, self.size());
        let side = [b'B', b'S', b'N'][below(&mut self.rng, 3) as usize];
        let extension = below(&mut self.rng, 3) as u8;
        let symbol = self.symbols[index];
        let reference = symbol.bid + symbol.spread / 2;
        let scheduled = (now / 1_000_000_000) as u32 + AUCTION_IN_SECONDS;
        Body::new(b'A', kind, now, &symbol.name)
            .u32(paired)
            .price(reference)
            .price(reference + CENT)
            .u32(if side == b'N' { 0 } else { imbalance })
            .u8(side)
            .u8(extension)
            .u32(scheduled)
            .price(reference - CENT)
            .price(reference)
            .price(reference - reference / 10)
            .price(reference + reference / 10)
    }

    fn official(&mut self, index: usize, kind: u8, now: i64) -> Body {
        let symbol = &self.symbols[index];
        Body::new(b'X', kind, now, &symbol.name).price(symbol.bid)
    }

    /// Opening and closing process complete; DEEP alone tells it.
    fn security_event(&self, index: usize, event: u8, now: i64, out: &mut Vec<Body>) {
        if self.product == Product::Deep {
            out.push(Body::new(b'E', event, now, &self.symbols[index].name));
        }
    }
}

fn system(event: u8, now: i64) -> Body {
    Body::new(b'S', event, now, &[])
}

/// A symbol of one to five letters, some with a suffix of their class of shares.
fn symbol(index: usize, rng: &mut Pcg64Mcg) -> Symbol {
    let mut name = [b' '; 8];
    let (mut rest, mut length) = (index * 7 + 3, 0);
    while length == 0 || rest > 0 {
        name[length] = b'A' + (rest % 26) as u8;
        rest /= 26;
        length += 1;
    }
    if index >= LISTED {
        name[length] = b'A' + (index % 26) as u8;
        length += 1;
    }
    if index % 9 == 8 {
        name[length..length + 2].copy_from_slice(b".B");
    }
    let bid = CENT * (500 + below(rng, 40_000) as i64);
    let round_lot = if bid > 250 * 100 * CENT { 10 } else { 100 };
    Symbol { name, bid, spread: CENT, halted: false, round_lot }
}
