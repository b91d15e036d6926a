//! Which addresses the relay may send to.
//!
//! A webhook's address often comes from a customer. Without these rules it could name a machine
//! inside the network of the relay: the metadata service of the cloud, a database, the relay
//! itself. So addresses that are not on the public internet are refused, unless the operator
//! sets `allow_private = true`. The ranges are those of the IANA special-purpose registries, and
//! the ways to write an IPv4 address inside an IPv6 one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network, length of its prefix, and what it is for.
type Range<A> = (A, u32, &'static str);

const RANGES_V4: [Range<Ipv4Addr>; 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    // The wire server of Azure, which answers its virtual machines.
    (Ipv4Addr::new(168, 63, 129, 16), 32, "cloud metadata"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "protocol assignments"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

const RANGES_V6: [Range<Ipv6Addr>; 15] = [
    // Unspecified `::`, loopback `::1` and the old way to embed IPv4.
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 96, "loopback or IPv4-compatible"),
    // `::ffff:0:a.b.c.d` of RFC 2765; the mapped `::ffff:a.b.c.d` is looked at as IPv4.
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96, "IPv4-translated"),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, "NAT64"),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "local NAT64"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "discard"),
    // Teredo is 2001::/32; the block around it holds benchmarking, ORCHID and the like.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "Teredo or protocol assignments"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "documentation"),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "segment routing"),
    // The metadata service of AWS, inside the next range.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, "cloud metadata"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "unique local"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "site-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast"),
];

/// What kind of address it is, if it is not one on the public internet.
pub(super) fn forbidden_range(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let bits = u32::from(address);
            let inside = |(network, prefix, _): &&Range<Ipv4Addr>| {
                (bits ^ u32::from(*network)) >> (u32::BITS - prefix) == 0
            };
            RANGES_V4.iter().find(inside).map(|(_, _, name)| *name)
        }
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            let inside = |(network, prefix, _): &&Range<Ipv6Addr>| {
                (bits ^ u128::from(*network)) >> (u128::BITS - prefix) == 0
            };
            RANGES_V6.iter().find(inside).map(|(_, _, name)| *name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: &str) -> Option<&'static str> {
        forbidden_range(address.parse().unwrap())
    }

    /// First and last address of each range, and the neighbours just outside where they are
    /// public.
    #[test]
    fn ranges_end_where_they_should() {
        let v4 = [
            ("0.0.0.0", "0.255.255.255", &["1.0.0.0"][..]),
            ("10.0.0.0", "10.255.255.255", &["9.255.255.255", "11.0.0.0"]),
            ("100.64.0.0", "100.127.255.255", &["100.63.255.255", "100.128.0.0"]),
            ("127.0.0.0", "127.255.255.255", &["126.255.255.255", "128.0.0.0"]),
            ("168.63.129.16", "168.63.129.16", &["168.63.129.15", "168.63.129.17"]),
            ("169.254.0.0", "169.254.255.255", &["169.253.255.255", "169.255.0.0"]),
            ("172.16.0.0", "172.31.255.255", &["172.15.255.255", "172.32.0.0"]),
            ("192.0.0.0", "192.0.0.255", &["191.255.255.255", "192.0.1.0"]),
            ("192.0.2.0", "192.0.2.255", &["192.0.1.255", "192.0.3.0"]),
            ("192.88.99.0", "192.88.99.255", &["192.88.98.255", "192.88.100.0"]),
            ("192.168.0.0", "192.168.255.255", &["192.167.255.255", "192.169.0.0"]),
            ("198.18.0.0", "198.19.255.255", &["198.17.255.255", "198.20.0.0"]),
            ("198.51.100.0", "198.51.100.255", &["198.51.99.255", "198.51.101.0"]),
            ("203.0.113.0", "203.0.113.255", &["203.0.112.255", "203.0.114.0"]),
            ("224.0.0.0", "239.255.255.255", &["223.255.255.255"]),
            ("240.0.0.0", "255.255.255.255", &[]),
        ];
        let v6 = [
            ("::", "::255.255.255.255", &["0:0:0:0:0:1::"][..]),
            ("::ffff:0:0:0", "::ffff:0:255.255.255.255", &["::fffe:0:0:0", "::ffff:1:0:0"]),
            ("64:ff9b::", "64:ff9b::ffff:ffff", &["64:ff9a:ffff::", "64:ff9b:0:0:0:1::"]),
            ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", &["64:ff9b:2::"]),
            ("100::", "100::ffff:ffff:ffff:ffff", &["100:0:0:1::"]),
            ("2001::", "2001:1ff:ffff::", &["2000:ffff::", "2001:200::"]),
            ("2001:db8::", "2001:db8:ffff::", &["2001:db7:ffff::", "2001:db9::"]),
            ("2002::", "2002:ffff::", &["2001:ffff::", "2003::"]),
            ("3fff::", "3fff:fff:ffff::", &["3ffe:ffff::", "3fff:1000::"]),
            ("5f00::", "5f00:ffff::", &["5eff:ffff::", "5f01::"]),
            ("fd00:ec2::254", "fd00:ec2::254", &[]),
            ("fc00::", "fdff:ffff::", &["fbff:ffff::", "fe00::"]),
            ("fe80::", "febf:ffff::", &["fe7f:ffff::"]),
            ("fec0::", "feff:ffff::", &[]),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &[]),
        ];
        assert_eq!((v4.len(), v6.len()), (RANGES_V4.len(), RANGES_V6.len()));
        for (first, last, outside) in v4.into_iter().chain(v6) {
            assert!(range(first).is_some(), "{first}");
            assert_eq!(range(first), range(last), "{first} to {last}");
            for address in outside {
                assert_eq!(range(address), None, "{address}");
            }
        }
    }

    #[test]
    fn an_embedded_address_is_seen_through() {
        assert_eq!(range("::ffff:127.0.0.1"), Some("loopback"));
        assert_eq!(range("::ffff:169.254.169.254"), Some("link-local"));
        assert_eq!(range("::ffff:8.8.8.8"), None);
        for address in ["64:ff9b::7f00:1", "2002:7f00:1::", "::7f00:1", "::1"] {
            assert!(range(address).is_some(), "{address}");
        }
    }

    #[test]
    fn services_of_clouds_and_newer_ranges_are_not_public() {
        for address in ["168.63.129.16", "::ffff:168.63.129.16", "fd00:ec2::254"] {
            assert_eq!(range(address), Some("cloud metadata"), "{address}");
        }
        assert_eq!(range("5f00::1"), Some("segment routing"));
        assert_eq!(range("::ffff:0:7f00:1"), Some("IPv4-translated"));
        for neighbour in ["168.63.129.15", "168.63.129.17"] {
            assert_eq!(range(neighbour), None, "{neighbour}");
        }
    }

    #[test]
    fn the_public_internet_is_allowed() {
        for address in ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::1"] {
            assert_eq!(range(address), None, "{address}");
        }
    }
}
