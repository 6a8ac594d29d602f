//! What a driver tells of itself beyond what capturing needs: channels, rings, coalescing, features, steering, clock,
//! XDP abilities. It only asks: none of these calls changes anything, and none needs a privilege.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::netlink::{self, Netlink};
use super::nic::Interface;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_BYTES: usize = 32;

/// Words of `struct ethtool_rxnfc` (linux/ethtool.h): cmd 0, flow type 1, data 2..4, the rule 4..46, count 46, then the
/// locations. Within the rule: type 4, its values from 5, its masks from 23, queue 42..44, location 44.
const RXNFC_WORDS: usize = 48;
const RXNFC_COUNT: usize = 46;
const RXNFC_LOCATIONS: usize = 47;
const RULE_TYPE: usize = 4;
const RULE_VALUES: usize = 5;
const RULE_MASKS: usize = 23;
const RULE_QUEUE: usize = 42;
const RULE_LOCATION: usize = 44;
const UDP_V4_FLOW: u32 = 0x02;
const IP_USER_FLOW: u32 = 0x0d;
/// Flags in the upper bits of a rule's type: extended fields, MAC, RSS context.
const FLOW_TYPE_MASK: u32 = 0x00ff_ffff;

/// Most rules, features and table entries that are asked for: mlx5 has room for 1,024 rules and i40e for 8,192; the
/// kernel had 64 features in 2026; an indirection table of ice has 2,048 entries.
const RULES_MAX: u32 = 8_192;
const FEATURES_MAX: u32 = 1_024;
const TABLE_MAX: u32 = 65_536;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of `struct genlmsghdr`.
const GENL_HEADER_BYTES: usize = 4;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_REDIRECT: u64 = 2;
const NETDEV_XDP_ACT_XSK_ZEROCOPY: u64 = 8;
const NETDEV_XDP_ACT_RX_SG: u64 = 32;

/// Who drives the interface (`ethtool -i`).
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Driver {
    /// The module's name.
    pub name: String,
    /// Its version: the kernel's release for most drivers that come with the kernel.
    pub version: String,
    /// The NIC's firmware.
    pub firmware: String,
    /// The bus address, `0000:41:00.0`; empty for links without a device.
    pub bus: String,
}

/// Queues, as `ethtool -l` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Channels {
    /// Most receive-only queues.
    pub rx_max: u32,
    /// Most combined queues.
    pub combined_max: u32,
    /// Receive-only queues now.
    pub rx: u32,
    /// Combined queues now.
    pub combined: u32,
}

/// Descriptors of the NIC's own rings (`ethtool -g`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Rings {
    /// Most receive descriptors.
    pub rx_max: u32,
    /// Receive descriptors now.
    pub rx: u32,
}

/// When the NIC interrupts (`ethtool -c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Coalescing {
    /// At most every so many microseconds.
    pub rx_usecs: u32,
    /// Or after so many frames.
    pub rx_frames: u32,
    /// The driver changes both as it sees fit.
    pub adaptive_rx: bool,
}

/// One feature (`ethtool -k`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Feature {
    /// Switched on.
    pub on: bool,
    /// The driver has no other state.
    pub fixed: bool,
}

/// One steering rule (`ethtool -n`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct FlowRule {
    /// Where it stands, which is also its number for `ethtool -N … delete`.
    pub location: u32,
    /// It looks at UDP over IPv4.
    pub udp: bool,
    /// The destination address that it asks for; none: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// The destination port that it asks for; none: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The queue that it steers to; none: it drops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
}

/// What driver and kernel say that XDP can do on the interface (kernel 6.3 and later).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct XdpFeatures {
    /// Programs in the driver, with redirection.
    pub native: bool,
    /// AF_XDP in zero-copy mode.
    pub zero_copy: bool,
    /// Programs may see frames of several buffers.
    pub multi_buffer: bool,
    /// Buffers that a zero-copy frame may have.
    pub zero_copy_buffers_max: u32,
}

impl Interface {
    /// Who drives it.
    ///
    /// # Errors
    /// The kernel's, as of every function here: `EOPNOTSUPP` where the driver does not tell.
    pub fn driver_told(&self) -> io::Result<Driver> {
        let words = self.asked(ETHTOOL_GDRVINFO, 49)?;
        let bytes = bytes_of(&words);
        // struct ethtool_drvinfo: driver 32, version 32, firmware 32, bus 32 bytes behind the command.
        let part = |at: usize| netlink::text(&bytes[at..at + 32]);
        Ok(Driver { name: part(4), version: part(36), firmware: part(68), bus: part(100) })
    }

    /// Its queues.
    ///
    /// # Errors
    /// The kernel's.
    pub fn channels(&self) -> io::Result<Channels> {
        let words = self.asked(ETHTOOL_GCHANNELS, 9)?;
        Ok(Channels { rx_max: words[1], combined_max: words[4], rx: words[5], combined: words[8] })
    }

    /// Its rings.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rings(&self) -> io::Result<Rings> {
        let words = self.asked(ETHTOOL_GRINGPARAM, 9)?;
        Ok(Rings { rx_max: words[1], rx: words[5] })
    }

    /// When it interrupts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn coalescing(&self) -> io::Result<Coalescing> {
        let words = self.asked(ETHTOOL_GCOALESCE, 23)?;
        Ok(Coalescing { rx_usecs: words[1], rx_frames: words[2], adaptive_rx: words[10] != 0 })
    }

    /// Its features by the kernel's names (`rx-gro-hw`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn features(&self) -> io::Result<BTreeMap<String, Feature>> {
        let mut info = vec![0_u32; 5];
        (info[0], info[2]) = (ETHTOOL_GSSET_INFO, 1 << ETH_SS_FEATURES);
        self.ethtool(info.as_mut_ptr().cast())?;
        let count = info[4].min(FEATURES_MAX) as usize;
        let mut names = vec![0_u32; 3 + FEATURES_MAX as usize * ETH_GSTRING_BYTES / 4];
        (names[0], names[1], names[2]) = (ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32);
        self.ethtool(names.as_mut_ptr().cast())?;
        let blocks = count.div_ceil(32);
        let mut states = vec![0_u32; 2 + FEATURES_MAX as usize / 32 * 4];
        (states[0], states[1]) = (ETHTOOL_GFEATURES, blocks as u32);
        self.ethtool(states.as_mut_ptr().cast())?;
        let names = bytes_of(&names[3..]);
        let names = names.chunks(ETH_GSTRING_BYTES).map(netlink::text).take(count);
        Ok(names.enumerate().map(|(at, name)| (name, feature_at(&states[2..], at))).collect())
    }

    /// The queue of each entry of its RSS table; empty where it has none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn indirection(&self) -> io::Result<Vec<u32>> {
        let size = self.asked(ETHTOOL_GRXFHINDIR, 2)?[1].min(TABLE_MAX);
        let mut words = vec![0_u32; 2 + size as usize];
        (words[0], words[1]) = (ETHTOOL_GRXFHINDIR, size);
        self.ethtool(words.as_mut_ptr().cast())?;
        Ok(words.split_off(2))
    }

    /// Its steering rules.
    ///
    /// # Errors
    /// The kernel's.
    pub fn flow_rules(&self) -> io::Result<Vec<FlowRule>> {
        let count = self.asked(ETHTOOL_GRXCLSRLCNT, RXNFC_WORDS)?[RXNFC_COUNT].min(RULES_MAX);
        let mut listed = vec![0_u32; RXNFC_WORDS + count as usize];
        (listed[0], listed[RXNFC_COUNT]) = (ETHTOOL_GRXCLSRLALL, count);
        self.ethtool(listed.as_mut_ptr().cast())?;
        let count = listed[RXNFC_COUNT].min(count) as usize;
        listed[RXNFC_LOCATIONS..].iter().take(count).map(|location| self.flow_rule(*location)).collect()
    }

    fn flow_rule(&self, location: u32) -> io::Result<FlowRule> {
        let mut words = vec![0_u32; RXNFC_WORDS];
        (words[0], words[RULE_LOCATION]) = (ETHTOOL_GRXCLSRULE, location);
        self.ethtool(words.as_mut_ptr().cast())?;
        Ok(decode_rule(&words))
    }

    /// The number of its clock (`/dev/ptpN`); none where it has no clock of its own.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clock_index(&self) -> io::Result<Option<u32>> {
        Ok(u32::try_from(self.asked(ETHTOOL_GET_TS_INFO, 11)?[2].cast_signed()).ok())
    }

    /// What XDP can do on it, by its driver's word; none where the kernel is older than 6.3.
    ///
    /// # Errors
    /// The kernel's.
    pub fn xdp_features(&self) -> io::Result<Option<XdpFeatures>> {
        let mut netlink = Netlink::open_family(libc::NETLINK_GENERIC, 0, false)?;
        let mut body = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
        netlink::push_attribute(&mut body, CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        let family = match netlink.request(GENL_ID_CTRL, 0, &body) {
            Ok(answer) => answer.and_then(|message| attribute(&message.body, CTRL_ATTR_FAMILY_ID)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(family) = family else { return Ok(None) };
        let mut body = vec![NETDEV_CMD_DEV_GET, 1, 0, 0];
        netlink::push_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &self.index.to_ne_bytes());
        let answer = netlink.request(family as u16, 0, &body)?;
        Ok(answer.and_then(|message| decode_xdp_features(&message.body)))
    }

    /// One question: `words` words with the command in the first.
    fn asked(&self, command: u32, words: usize) -> io::Result<Vec<u32>> {
        // No answer to these commands is longer than RXNFC_WORDS and its rule; room for both, whatever was asked for.
        let mut buffer = vec![0_u32; words.max(RXNFC_WORDS) + 2];
        buffer[0] = command;
        self.ethtool(buffer.as_mut_ptr().cast())?;
        Ok(buffer)
    }
}

/// Block *i* of 32 features: available, requested, active, never changed (`struct ethtool_get_features_block`).
fn feature_at(states: &[u32], at: usize) -> Feature {
    let bit = |word: usize| states.get(at / 32 * 4 + word).is_some_and(|bits| bits >> (at % 32) & 1 == 1);
    Feature { on: bit(2), fixed: !bit(0) || bit(3) }
}

fn decode_rule(words: &[u32]) -> FlowRule {
    let kind = words[RULE_TYPE] & FLOW_TYPE_MASK;
    // struct ethtool_tcpip4_spec: source, destination, source port, destination port, in network order.
    let word = |at: usize| words[at].to_ne_bytes();
    let has_address = matches!(kind, UDP_V4_FLOW | IP_USER_FLOW) && words[RULE_MASKS + 1] == u32::MAX;
    let has_port = kind == UDP_V4_FLOW && word(RULE_MASKS + 2)[2..] == [0xff, 0xff];
    let ports = word(RULE_VALUES + 2);
    // The queue's word has the virtual function above it; all ones is RX_CLS_FLOW_DISC.
    let drops = words[RULE_QUEUE] == u32::MAX && words[RULE_QUEUE + 1] == u32::MAX;
    FlowRule {
        location: words[RULE_LOCATION],
        udp: kind == UDP_V4_FLOW,
        address: has_address.then(|| Ipv4Addr::from(word(RULE_VALUES + 1))),
        port: has_port.then(|| u16::from_be_bytes([ports[2], ports[3]])),
        queue: (!drops).then(|| low_word(words[RULE_QUEUE], words[RULE_QUEUE + 1])),
    }
}

/// The lower half of a 64-bit value that stands in two words.
fn low_word(first: u32, second: u32) -> u32 {
    if cfg!(target_endian = "little") { first } else { second }
}

fn decode_xdp_features(body: &[u8]) -> Option<XdpFeatures> {
    let flags = attribute(body, NETDEV_A_DEV_XDP_FEATURES)?;
    let has = |bits: u64| flags & bits == bits;
    Some(XdpFeatures {
        native: has(NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT),
        zero_copy: has(NETDEV_XDP_ACT_XSK_ZEROCOPY),
        multi_buffer: has(NETDEV_XDP_ACT_RX_SG),
        zero_copy_buffers_max: attribute(body, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).unwrap_or(0) as u32,
    })
}

/// An unsigned attribute of 2, 4 or 8 bytes in a generic netlink message.
fn attribute(body: &[u8], wanted: u16) -> Option<u64> {
    let mut attributes = netlink::attributes(body.get(GENL_HEADER_BYTES..)?);
    let value = attributes.find(|(kind, _)| *kind == wanted)?.1;
    Some(match *value {
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => u64::from_ne_bytes(value.try_into().ok()?),
    })
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_from_the_kernels_words() {
        let mut words = vec![0_u32; RXNFC_WORDS];
        words[RULE_TYPE] = UDP_V4_FLOW | 0x8000_0000;
        words[RULE_VALUES + 1] = u32::from_ne_bytes([233, 215, 21, 4]);
        words[RULE_VALUES + 2] = u32::from_ne_bytes([0, 0, 0x28, 0x8a]);
        words[RULE_MASKS + 1] = u32::MAX;
        words[RULE_MASKS + 2] = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
        let queue = 3_u64.to_ne_bytes();
        words[RULE_QUEUE] = u32::from_ne_bytes([queue[0], queue[1], queue[2], queue[3]]);
        words[RULE_QUEUE + 1] = u32::from_ne_bytes([queue[4], queue[5], queue[6], queue[7]]);
        words[RULE_LOCATION] = 7;
        let rule = FlowRule {
            location: 7,
            udp: true,
            address: Some(Ipv4Addr::new(233, 215, 21, 4)),
            port: Some(10_378),
            queue: Some(3),
        };
        assert_eq!(decode_rule(&words), rule);
        words[RULE_QUEUE..RULE_QUEUE + 2].fill(u32::MAX);
        words[RULE_MASKS + 1] = 0;
        assert_eq!(decode_rule(&words), FlowRule { queue: None, address: None, ..rule });
    }

    #[test]
    fn features_stand_in_blocks_of_32() {
        let mut states = [0_u32; 8];
        (states[4], states[6], states[7]) = (0b11, 0b10, 0b01);
        assert_eq!(feature_at(&states, 32), Feature { on: false, fixed: true }, "never changed");
        assert_eq!(feature_at(&states, 33), Feature { on: true, fixed: false });
        assert_eq!(feature_at(&states, 34), Feature { on: false, fixed: true }, "not available");
        assert_eq!(feature_at(&states, 500), Feature { on: false, fixed: true }, "beyond the answer");
    }

    #[test]
    fn xdp_features_are_read_from_their_attributes() {
        let mut body = vec![1, 1, 0, 0];
        netlink::push_attribute(&mut body, NETDEV_A_DEV_IFINDEX, &2_u32.to_ne_bytes());
        netlink::push_attribute(&mut body, NETDEV_A_DEV_XDP_FEATURES, &43_u64.to_ne_bytes());
        netlink::push_attribute(&mut body, NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &18_u32.to_ne_bytes());
        let all = XdpFeatures { native: true, zero_copy: true, multi_buffer: true, zero_copy_buffers_max: 18 };
        assert_eq!(decode_xdp_features(&body), Some(all));
        for cut in 0..body.len() {
            assert!(decode_xdp_features(&body[..cut]).is_none_or(|told| told.native), "cut at {cut}");
        }
    }

    #[test]
    fn the_loopback_tells_its_features() {
        let lo = Interface::find("lo").expect("every namespace has lo");
        let features = lo.features().expect("every device has features");
        assert!(features.get("loopback").is_some_and(|feature| feature.on && feature.fixed), "{features:?}");
    }
}
