//! Several connections for one subscription (the server's extension): what is asked, what is offered, and which chunks go where.
//!
//! A request with `flows=N` is answered with the field [`FLOWS_FIELD`]; its connection is flow 0 of as many as both sides take.
//! The others ask with `flow=k&flows=n&id=X`. BEGIN and END go on all, chunk *i* on flow *i* mod *n*.

use std::fmt;

use super::query;

/// The answer's field that offers flows.
pub const FLOWS_FIELD: &str = "Sluice-Flows";
/// Most flows that a request may name: far more than any link needs, and small enough to be a number of sockets.
pub const FLOWS_MAX: u32 = 64;

/// Which chunks of each ledger a connection carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    flow: u32,
    flows: u32,
}

impl Share {
    /// Everything.
    pub const WHOLE: Share = Share { flow: 0, flows: 1 };

    /// Flow `flow` of `flows`. Asserts that there is such a one.
    pub fn new(flow: u32, flows: u32) -> Share {
        assert!(flow < flows, "flow {flow} of {flows}");
        Share { flow, flows }
    }

    /// Which flow it is.
    pub fn flow(&self) -> u32 {
        self.flow
    }

    /// Of how many.
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// Whether it carries message `index` of a ledger (BEGIN is 0) whose END, where it is known, is message `end`.
    pub fn takes(&self, index: usize, end: Option<usize>) -> bool {
        index == 0 || Some(index) == end || (index - 1) % self.flows as usize == self.flow as usize
    }

    /// The first message from `from` on that it carries.
    pub fn next(&self, from: usize, end: Option<usize>) -> usize {
        if from == 0 || self.flows == 1 {
            return from;
        }
        let (flow, flows) = (self.flow as usize, self.flows as usize);
        let own = from + (flow + flows - (from - 1) % flows) % flows;
        end.map_or(own, |end| own.min(end.max(from)))
    }
}

/// What a request asks of flows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A subscription of as many flows; this is the first.
    First(u32),
    /// Another flow of a subscription.
    Other {
        /// Its share.
        share: Share,
        /// The subscription.
        id: u64,
    },
}

/// Why a request's flows are refused, with status 400.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlowsError {
    /// Not a number, or one outside of what is possible.
    #[error("invalid {parameter} parameter {value:?}: a number from {least} to {most}")]
    Number {
        /// `flow` or `flows`.
        parameter: &'static str,
        /// What was given.
        value: String,
        /// The least that is taken.
        least: u32,
        /// The most.
        most: u32,
    },
    /// `flow` or `id` without the others.
    #[error("flow, flows and id go together: {missing} is missing")]
    Missing {
        /// What is missing.
        missing: &'static str,
    },
    /// Not what a server gives as an id.
    #[error("invalid id parameter {value:?}: it is what {FLOWS_FIELD} gave, 16 hexadecimal digits")]
    Id {
        /// What was given.
        value: String,
    },
}

/// Reads what a request's query asks of flows; `None`: nothing. A blank parameter is as if it were absent.
///
/// # Errors
/// See [`FlowsError`].
pub fn parse(text: &str) -> Result<Option<Asked>, FlowsError> {
    let value = |name| query::first_value(text, name).filter(|value| !value.trim().is_empty());
    let number = |parameter, least, most, value: String| {
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        match value.parse() {
            Ok(number) if digits && (least..=most).contains(&number) => Ok(number),
            _ => Err(FlowsError::Number { parameter, value, least, most }),
        }
    };
    match (value("flow"), value("flows"), value("id")) {
        (None, None, None) => Ok(None),
        (None, Some(flows), None) => Ok(Some(Asked::First(number("flows", 1, FLOWS_MAX, flows)?))),
        (Some(flow), Some(flows), Some(id)) => {
            let flows = number("flows", 2, FLOWS_MAX, flows)?;
            let flow = number("flow", 1, flows - 1, flow)?;
            let hex = id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            match u64::from_str_radix(&id, 16) {
                Ok(id) if hex => Ok(Some(Asked::Other { share: Share::new(flow, flows), id })),
                _ => Err(FlowsError::Id { value: id }),
            }
        }
        // A stranger's `id` is a parameter like any other.
        (None, None, Some(_)) => Ok(None),
        (None, ..) => Err(FlowsError::Missing { missing: "flow" }),
        (_, None, _) => Err(FlowsError::Missing { missing: "flows" }),
        (.., None) => Err(FlowsError::Missing { missing: "id" }),
    }
}

/// What a server offers, as the value of [`FLOWS_FIELD`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Most flows of a subscription.
    pub max: u32,
    /// The subscription.
    pub id: u64,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "max={}; id={:016x}", self.max, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_of_one_flow_and_begin_and_end_of_all() {
        for flows in 1..=5 {
            for chunks in 0..=12_usize {
                let end = chunks + 1;
                let mut carried = vec![0; end + 1];
                for flow in 0..flows {
                    let share = Share::new(flow, flows);
                    let mut at = share.next(0, Some(end));
                    loop {
                        assert!(share.takes(at, Some(end)), "{share:?} {at}");
                        carried[at] += 1;
                        if at == end {
                            break;
                        }
                        at = share.next(at + 1, Some(end));
                    }
                }
                assert!(carried[1..end].iter().all(|&times| times == 1), "{flows} {chunks}");
                assert_eq!((carried[0], carried[end]), (flows, flows));
            }
        }
        assert_eq!(Share::new(1, 3).next(1, None), 2, "an end that is not known is waited for");
        assert_eq!(Share::new(2, 3).next(4, None), 6);
    }

    #[test]
    fn requests_are_read() {
        let other = |flow, flows| Asked::Other { share: Share::new(flow, flows), id: 0xab };
        for (text, expected) in [
            ("", None),
            ("start=7&flows=", None),
            ("id=theirs", None),
            ("flows=1", Some(Asked::First(1))),
            ("start=7&flows=64&flows=x", Some(Asked::First(64))),
            ("flow=1&flows=2&id=00000000000000ab", Some(other(1, 2))),
            ("flow=7&flows=8&id=00000000000000AB", Some(other(7, 8))),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in [
            "flows=0",
            "flows=65",
            "flows=x",
            "flows=-1",
            "flows=%2B1",
            "flow=1",
            "flow=1&flows=2",
            "flow=1&id=00000000000000ab",
            "flows=2&id=00000000000000ab",
            "flow=0&flows=2&id=00000000000000ab",
            "flow=2&flows=2&id=00000000000000ab",
            "flow=1&flows=1&id=00000000000000ab",
            "flow=1&flows=2&id=ab",
            "flow=1&flows=2&id=000000000000000g",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(Offer { max: 8, id: 0xab }.to_string(), "max=8; id=00000000000000ab");
    }
}
