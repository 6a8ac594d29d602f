//! DEEP 1.0, TOPS 1.6 and TOPS 1.5 messages: views over a body's bytes.
//!
//! A body may be longer than its type's known fields (fields are appended over time; TOPS 1.5 trades carry four
//! reserved bytes); a type that is not known is an error that the caller counts and steps over.
//! Prices are i64 × 10⁻⁴ USD; event times are seconds, time stamps nanoseconds since the Unix epoch.

use std::fmt;

use crate::wire::iextp;
use crate::wire::segment::SessionKey;

/// Bytes of the fields that every message begins with: type, flags or code, time stamp.
const COMMON_BYTES: usize = 10;

/// Eight ASCII bytes, left-justified, padded with spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol(pub [u8; 8]);

impl Symbol {
    /// The symbol without its padding.
    pub fn as_bytes(&self) -> &[u8] {
        trim(&self.0)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symbol({})", self.as_bytes().escape_ascii())
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

/// A field's value, as it stands in the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// An unsigned number (u8 or u32 on the wire).
    Unsigned(u32),
    /// A signed number (i64 on the wire).
    Signed(i64),
    /// Text, its padding included.
    Text(&'a [u8]),
}

/// Reads one field; positions are constants below the body's fixed length, so no bounds check is left after inlining.
trait Field<'a>: Copy {
    fn read(bytes: &'a [u8], at: usize) -> Self;
    fn value(self) -> Value<'a>;
}

impl<'a> Field<'a> for u8 {
    #[inline(always)]
    fn read(bytes: &'a [u8], at: usize) -> u8 {
        bytes[at]
    }

    #[inline(always)]
    fn value(self) -> Value<'a> {
        Value::Unsigned(u32::from(self))
    }
}

impl<'a> Field<'a> for u32 {
    #[inline(always)]
    fn read(bytes: &'a [u8], at: usize) -> u32 {
        u32::from_le_bytes(<&[u8; 4]>::read(bytes, at).to_owned())
    }

    #[inline(always)]
    fn value(self) -> Value<'a> {
        Value::Unsigned(self)
    }
}

impl<'a> Field<'a> for i64 {
    #[inline(always)]
    fn read(bytes: &'a [u8], at: usize) -> i64 {
        i64::from_le_bytes(<&[u8; 8]>::read(bytes, at).to_owned())
    }

    #[inline(always)]
    fn value(self) -> Value<'a> {
        Value::Signed(self)
    }
}

impl<'a, const N: usize> Field<'a> for &'a [u8; N] {
    #[inline(always)]
    fn read(bytes: &'a [u8], at: usize) -> &'a [u8; N] {
        bytes[at..].first_chunk().expect("fields lie inside the body's fixed length")
    }

    #[inline(always)]
    fn value(self) -> Value<'a> {
        Value::Text(self)
    }
}

/// Declares the message types: for each its type bytes, its length, and the fields after the common ones (in the order
/// and under the names that rows give them).
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident($($kind:literal)|+, $bytes:literal $(, $symbol:ident)?) {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $at:literal,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name<'a>(&'a [u8; $bytes]);

            impl<'a> $name<'a> {
                /// Bytes of the fields that are known.
                pub const BYTES: usize = $bytes;

                $(
                    #[doc = concat!("The message's ", stringify!($symbol), ".")]
                    #[inline(always)]
                    pub fn $symbol(&self) -> Symbol {
                        Symbol(*<&[u8; 8]>::read(self.0, COMMON_BYTES))
                    }
                )?
                $(
                    $(#[$field_doc])*
                    #[inline(always)]
                    pub fn $field(&self) -> $type {
                        <$type>::read(self.0, $at)
                    }
                )*
            }
        )*

        /// One message, borrowed from its body.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message<'a> {
            $($(#[$doc])* $name($name<'a>),)*
        }

        impl<'a> Message<'a> {
            /// Views `body` as the message that its first byte names.
            #[inline]
            pub fn decode(body: &'a [u8]) -> Result<Message<'a>, MessageError> {
                let kind = *body.first().ok_or(MessageError::Empty)?;
                match kind {
                    $($($kind)|+ => match body.first_chunk() {
                        Some(bytes) => Ok(Message::$name($name(bytes))),
                        None => Err(MessageError::Short { kind, bytes: body.len(), needed: $bytes }),
                    },)*
                    _ => Err(MessageError::Unknown { kind }),
                }
            }

            /// The known bytes of the body.
            #[inline(always)]
            fn bytes(&self) -> &'a [u8] {
                match self {
                    $(Message::$name(message) => message.0,)*
                }
            }

            /// The symbol; a system event has none.
            #[inline(always)]
            pub fn symbol(&self) -> Option<Symbol> {
                match self {
                    $(Message::$name(_message) => messages!(@symbol _message $($symbol)?),)*
                }
            }

            /// Calls `each` with the name and value of every field after the common ones and the symbol.
            #[inline(always)]
            pub fn fields(&self, mut each: impl FnMut(&'static str, Value<'a>)) {
                match self {
                    $(Message::$name(_message) => {
                        $(each(stringify!($field), <$type>::read(_message.0, $at).value());)*
                    })*
                }
            }
        }
    };
    (@symbol $message:ident $symbol:ident) => { Some($message.$symbol()) };
    (@symbol $message:ident) => { None };
}

messages! {
    /// `S`, System Event. Byte 1 is the event: O S R M E C.
    SystemEvent(b'S', 10) {}

    /// `D`, Security Directory. Byte 1 holds flags.
    SecurityDirectory(b'D', 31, symbol) {
        /// Shares in a round lot.
        round_lot_size: u32 = 18,
        /// Corporate-action adjusted previous official close, 10⁻⁴ USD.
        adjusted_poc_close: i64 = 22,
        /// Limit-up limit-down tier: 0 none, 1, 2.
        luld_tier: u8 = 30,
    }

    /// `H`, Trading Status. Byte 1 is the status: H O P T.
    TradingStatus(b'H', 22, symbol) {
        /// The reason of a halt, padded with spaces.
        reason: &'a [u8; 4] = 18,
    }

    /// `I`, Retail Liquidity Indicator. Byte 1 is the indicator.
    RetailLiquidity(b'I', 18, symbol) {}

    /// `O`, Operational Halt Status. Byte 1 is the status: O N.
    OperationalHalt(b'O', 18, symbol) {}

    /// `P`, Short Sale Price Test Status. Byte 1 is the status: 0 or 1.
    ShortSale(b'P', 19, symbol) {
        /// Why the restriction holds, or a space.
        detail: &'a [u8; 1] = 18,
    }

    /// `E`, Security Event (DEEP). Byte 1 is the event: O C.
    SecurityEvent(b'E', 18, symbol) {}

    /// `8` (buy) and `5` (sell), Price Level Update (DEEP). Byte 1 holds event flags; bit 0: the event is complete.
    PriceLevel(b'8' | b'5', 30, symbol) {
        /// Price of the level, 10⁻⁴ USD.
        price: i64 = 22,
        /// Shares at the level now; 0 removes it.
        size: u32 = 18,
    }

    /// `Q`, Quote Update (TOPS). Byte 1 holds flags.
    QuoteUpdate(b'Q', 42, symbol) {
        /// Shares bid.
        bid_size: u32 = 18,
        /// Bid price, 10⁻⁴ USD.
        bid_price: i64 = 22,
        /// Shares offered.
        ask_size: u32 = 38,
        /// Ask price, 10⁻⁴ USD.
        ask_price: i64 = 30,
    }

    /// `T`, Trade Report. Byte 1 holds sale condition flags.
    TradeReport(b'T', 38, symbol) {
        /// Price, 10⁻⁴ USD.
        price: i64 = 22,
        /// Shares.
        size: u32 = 18,
        /// Trade id, unique in a day.
        trade_id: i64 = 30,
    }

    /// `B`, Trade Break. Byte 1 holds the broken trade's sale condition flags.
    TradeBreak(b'B', 38, symbol) {
        /// Price of the broken trade, 10⁻⁴ USD.
        price: i64 = 22,
        /// Its shares.
        size: u32 = 18,
        /// Its trade id.
        trade_id: i64 = 30,
    }

    /// `X`, Official Price. Byte 1 is the price's type: Q opening, M closing.
    OfficialPrice(b'X', 26, symbol) {
        /// Price, 10⁻⁴ USD.
        price: i64 = 18,
    }

    /// `A`, Auction Information. Byte 1 is the auction's type: O C I H V.
    AuctionInformation(b'A', 80, symbol) {
        /// Shares paired at the reference price.
        paired_shares: u32 = 18,
        /// Reference price, 10⁻⁴ USD.
        reference_price: i64 = 22,
        /// Indicative clearing price, 10⁻⁴ USD.
        indicative_clearing_price: i64 = 30,
        /// Shares of the imbalance.
        imbalance_shares: u32 = 38,
        /// Side of the imbalance: B S N.
        imbalance_side: &'a [u8; 1] = 42,
        /// Extensions that the auction has had.
        extension_number: u8 = 43,
        /// Projected time of the auction, seconds since the Unix epoch.
        scheduled_auction_time: u32 = 44,
        /// Auction book clearing price, 10⁻⁴ USD.
        auction_book_clearing_price: i64 = 48,
        /// Collar reference price, 10⁻⁴ USD.
        collar_reference_price: i64 = 56,
        /// Lower auction collar price, 10⁻⁴ USD.
        lower_auction_collar_price: i64 = 64,
        /// Upper auction collar price, 10⁻⁴ USD.
        upper_auction_collar_price: i64 = 72,
    }
}

impl Message<'_> {
    /// The type byte.
    #[inline(always)]
    pub fn kind(&self) -> u8 {
        self.bytes()[0]
    }

    /// The byte after the type: flags, status or event, as the type has it.
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.bytes()[1]
    }

    /// The message's time stamp, ns since the Unix epoch.
    #[inline(always)]
    pub fn timestamp_ns(&self) -> i64 {
        i64::read(self.bytes(), 2)
    }
}

/// Why a body is no message that is known.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageError {
    /// A body of no bytes.
    #[error("a message of 0 bytes")]
    Empty,
    /// A type that none of the specifications names; a receiver steps over it.
    #[error("message type 0x{kind:02x} is not known")]
    Unknown {
        /// The type byte.
        kind: u8,
    },
    /// Fewer bytes than the type's fields take.
    #[error("message type 0x{kind:02x} of {bytes} bytes, its fields take {needed}")]
    Short {
        /// The type byte.
        kind: u8,
        /// Bytes of the body.
        bytes: usize,
        /// Bytes that the fields take.
        needed: usize,
    },
}

/// Whether the message protocol's bodies are those of this module.
pub fn known_protocol(session: &SessionKey) -> bool {
    matches!(session.protocol_id, iextp::TOPS_1_5 | iextp::TOPS_1_6 | iextp::DEEP_1_0)
}
