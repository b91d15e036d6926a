//! Tells a relay that events were committed, so that it looks at once.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Sends hints to a relay that listens for them (`hint` in its `[source]`).
///
/// Send one *after* the commit, never before: the relay would look too early and find nothing. A
/// hint is a datagram and may get lost, which costs a poll's delay and nothing else, so it is
/// never waited for and an error is no matter.
#[derive(Debug)]
pub struct HintSender {
    socket: UdpSocket,
    address: SocketAddr,
}

impl HintSender {
    /// Makes a sender to the address of a relay, such as `127.0.0.1:8788`. Fails if a name cannot
    /// be resolved or there is no socket to be had; whether a relay listens does not matter.
    pub fn to(address: impl ToSocketAddrs) -> io::Result<Self> {
        let address = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let socket = match address {
            SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
            SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
        };
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    /// Sends a hint, without waiting for anything.
    pub fn send(&self) {
        let _ = self.socket.send_to(&[], self.address);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_hint_arrives_and_nobody_there_is_no_error() {
        let relay = UdpSocket::bind("127.0.0.1:0").unwrap();
        relay.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let sender = HintSender::to(relay.local_addr().unwrap()).unwrap();
        sender.send();
        assert_eq!(relay.recv(&mut [0; 8]).unwrap(), 0);
        drop(relay);
        sender.send();
        sender.send();
        assert!(HintSender::to("no address").is_err());
    }
}
