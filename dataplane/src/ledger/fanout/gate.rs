//! Who comes in: limits on connections and subscribers, in all and for each address, and the subscriptions that have several flows.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use super::super::session::Door;
use super::super::share::Share;
use crate::sys::clock;
use crate::wire::http::Refusal;

/// Connections beside the subscribers: requests that come, answers and closes that are on their way. A handshake takes a round
/// trip, so this is for a burst of reconnects after a restart.
const OTHERS_MAX: usize = 512;
/// The same for one address.
const OTHERS_PER_ADDRESS_MAX: usize = 64;

/// The limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateLimits {
    /// Most subscribers' connections.
    pub subscribers_max: usize,
    /// Most of one address.
    pub per_address_max: usize,
    /// Most flows of a subscription; 1: flows are answered, but not given.
    pub flows_max: u32,
}

/// Why a connection was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Crowded {
    /// Too many connections.
    All,
    /// Too many of its address.
    Address,
}

#[derive(Clone, Copy, Default)]
struct Count {
    connections: usize,
    streams: usize,
}

/// What a connection that is sent a stream has taken of the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entered {
    /// The subscription that ends with it: it is the first flow.
    group: Option<u64>,
    /// Whether it counts as a subscriber: the first flow does.
    first: bool,
}

/// Requests that were refused, by reason.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Refused {
    pub(super) subscribers: u64,
    pub(super) address: u64,
    pub(super) token: u64,
    /// Before the run that is served was known.
    pub(super) early: u64,
}

/// What one address's limits count: of IPv6 the first 64 bits, since a host has all addresses below them.
fn host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

/// Counts who is in.
pub(super) struct Gate {
    limits: GateLimits,
    all: Count,
    subscribers: usize,
    /// By what [`host`] makes of an address.
    addresses: HashMap<IpAddr, Count>,
    /// Flows of each subscription that has asked for them.
    groups: HashMap<u64, u32>,
    /// Why nobody is sent a stream yet.
    pub(super) shut: Option<&'static str>,
    pub(super) refused: Refused,
}

impl Gate {
    pub(super) fn new(limits: GateLimits) -> Gate {
        Gate {
            limits,
            all: Count::default(),
            subscribers: 0,
            addresses: HashMap::new(),
            groups: HashMap::new(),
            shut: None,
            refused: Refused::default(),
        }
    }

    /// Subscribers; one with several flows counts once.
    pub(super) fn subscribers(&self) -> usize {
        self.subscribers
    }

    /// Connections, whatever they are for.
    pub(super) fn connections(&self) -> usize {
        self.all.connections
    }

    /// A connection comes.
    pub(super) fn connect(&mut self, address: IpAddr) -> Result<(), Crowded> {
        let address = host(address);
        let (limits, one) = (self.limits, self.addresses.get(&address).copied().unwrap_or_default());
        if self.all.connections >= limits.subscribers_max.saturating_add(OTHERS_MAX) {
            return Err(Crowded::All);
        }
        if one.connections >= limits.per_address_max.saturating_add(OTHERS_PER_ADDRESS_MAX) {
            return Err(Crowded::Address);
        }
        self.all.connections += 1;
        self.addresses.entry(address).or_default().connections += 1;
        Ok(())
    }

    /// A connection ends, with what it had taken.
    pub(super) fn disconnect(&mut self, address: IpAddr, entered: Option<Entered>) {
        if let Some(entered) = entered {
            self.leave(address, entered);
        }
        self.all.connections -= 1;
        let address = host(address);
        let one = self.addresses.get_mut(&address).expect("a connection is counted at its address");
        one.connections -= 1;
        if one.connections == 0 {
            self.addresses.remove(&address);
        }
    }

    /// A connection is sent no stream any more.
    pub(super) fn leave(&mut self, address: IpAddr, entered: Entered) {
        self.all.streams -= 1;
        self.addresses.get_mut(&host(address)).expect("a connection is counted at its address").streams -= 1;
        self.subscribers -= usize::from(entered.first);
        if let Some(group) = entered.group {
            self.groups.remove(&group);
        }
    }

    fn enter(&mut self, address: IpAddr, share: Share, id: Option<u64>, flows: bool) -> Result<Entered, Refusal> {
        if let Some(why) = self.shut {
            self.refused.early += 1;
            return Err(Refusal::new(503, why.to_string()));
        }
        let one = self.addresses.get_mut(&host(address)).expect("a connection is counted at its address");
        if self.all.streams >= self.limits.subscribers_max {
            self.refused.subscribers += 1;
            let text = format!("this server has {} subscribers, its most: ask again later", self.all.streams);
            return Err(Refusal::new(503, text));
        }
        if one.streams >= self.limits.per_address_max {
            self.refused.address += 1;
            let text = format!("{} subscribers are of your address, the most of one: ask again later", one.streams);
            return Err(Refusal::new(429, text));
        }
        self.all.streams += 1;
        one.streams += 1;
        let first = share.flow() == 0;
        self.subscribers += usize::from(first);
        let group = (first && flows).then_some(id).flatten();
        if let Some(group) = group {
            self.groups.insert(group, share.flows());
        }
        Ok(Entered { group, first })
    }
}

/// Decides whether a token is good: `Authorization`, and the parameter `token`.
pub type TokenCheck = Box<dyn FnMut(Option<&str>, Option<&str>) -> bool + Send>;

/// The gate as one connection's request meets it.
pub(super) struct DoorOf<'a> {
    pub(super) gate: &'a mut Gate,
    pub(super) tokens: Option<&'a mut TokenCheck>,
    pub(super) address: IpAddr,
    /// A number that nobody had: the subscription's, if it asks for flows.
    pub(super) fresh_id: u64,
    pub(super) entered: &'a mut Option<Entered>,
}

impl Door for DoorOf<'_> {
    fn admits(&mut self, authorization: Option<&str>, token: Option<&str>) -> bool {
        let admits = self.tokens.as_mut().is_none_or(|check| check(authorization, token));
        self.gate.refused.token += u64::from(!admits);
        admits
    }

    fn utc_ns(&self) -> Option<i64> {
        Some(clock::utc_ns())
    }

    fn flows_max(&self) -> u32 {
        self.gate.limits.flows_max
    }

    fn flows_of(&self, id: u64) -> Option<u32> {
        self.gate.groups.get(&id).copied()
    }

    fn enter(&mut self, share: Share, id: Option<u64>, flows: bool) -> Result<Option<u64>, Refusal> {
        let id = id.unwrap_or(self.fresh_id);
        *self.entered = Some(self.gate.enter(self.address, share, Some(id), flows)?);
        Ok(flows.then_some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn limits_hold_in_all_and_for_each_address() {
        let mut gate = Gate::new(GateLimits { subscribers_max: 3, per_address_max: 2, flows_max: 4 });
        let enter = |gate: &mut Gate, last| {
            gate.connect(address(last)).expect("room for a connection");
            gate.enter(address(last), Share::WHOLE, None, false).map_err(|refusal| refusal.status)
        };
        let first = enter(&mut gate, 1).expect("room");
        assert!(enter(&mut gate, 1).is_ok());
        assert_eq!(enter(&mut gate, 1), Err(429));
        assert!(enter(&mut gate, 2).is_ok());
        assert_eq!(enter(&mut gate, 3), Err(503));
        assert_eq!((gate.subscribers(), gate.connections()), (3, 5));
        gate.disconnect(address(1), None);
        gate.disconnect(address(1), Some(first));
        assert!(enter(&mut gate, 3).is_ok());
        assert_eq!(gate.refused, Refused { subscribers: 1, address: 1, token: 0, early: 0 });
    }

    #[test]
    fn connections_are_bounded_beside_the_subscribers() {
        let mut gate = Gate::new(GateLimits { subscribers_max: 100, per_address_max: 1, flows_max: 4 });
        for _ in 0..=OTHERS_PER_ADDRESS_MAX {
            gate.connect(address(1)).expect("room");
        }
        assert_eq!(gate.connect(address(1)), Err(Crowded::Address));
        let mut taken = OTHERS_PER_ADDRESS_MAX + 1;
        while taken < 100 + OTHERS_MAX {
            gate.connect(IpAddr::from(((taken as u128) << 64).to_be_bytes())).expect("room");
            taken += 1;
        }
        assert_eq!(gate.connect(address(3)), Err(Crowded::All));
        (0..=OTHERS_PER_ADDRESS_MAX).for_each(|_| gate.disconnect(address(1), None));
        assert!(!gate.addresses.contains_key(&address(1)), "an address without connections is forgotten");
    }

    #[test]
    fn a_host_of_ipv6_has_one_address_of_many() {
        let mut gate = Gate::new(GateLimits { subscribers_max: 100, per_address_max: 2, flows_max: 4 });
        let of = |network: u128, host: u128| IpAddr::from((network << 64 | host).to_be_bytes());
        let enter = |gate: &mut Gate, address| {
            gate.connect(address).expect("room for a connection");
            gate.enter(address, Share::WHOLE, None, false).map_err(|refusal| refusal.status)
        };
        let entered: Vec<_> = (1..=2).map(|host| enter(&mut gate, of(7, host)).expect("room")).collect();
        assert_eq!(enter(&mut gate, of(7, 1 << 63)), Err(429));
        assert!(enter(&mut gate, of(8, 1)).is_ok(), "another network");
        gate.disconnect(of(7, 1 << 63), None);
        (1..=2).zip(entered).for_each(|(host, entered)| gate.disconnect(of(7, host), Some(entered)));
        assert_eq!((gate.addresses.len(), gate.connections()), (1, 1));
    }

    #[test]
    fn a_subscription_of_flows_counts_once_and_ends_with_its_first() {
        let mut gate = Gate::new(GateLimits { subscribers_max: 9, per_address_max: 9, flows_max: 4 });
        let mut entered = [None, None];
        for (flow, entered) in (0..2).zip(&mut entered) {
            gate.connect(address(1)).expect("room");
            let mut door = DoorOf { gate: &mut gate, tokens: None, address: address(1), fresh_id: 7, entered };
            let id = if flow == 0 { None } else { Some(7) };
            assert_eq!(door.flows_of(7), id.map(|_| 2));
            assert_eq!(door.enter(Share::new(flow, 2), id, true).map_err(|refusal| refusal.status), Ok(Some(7)));
        }
        assert_eq!((gate.subscribers(), gate.connections(), gate.groups.len()), (1, 2, 1));
        gate.disconnect(address(1), entered[0]);
        assert_eq!((gate.subscribers(), gate.connections(), gate.groups.len()), (0, 1, 0));
        gate.disconnect(address(1), entered[1]);
        assert_eq!(gate.connections(), 0);
    }
}
