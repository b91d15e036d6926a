//! How many bodies are read at a time, in all and for each peer.
//!
//! Nobody knows whether a request is genuine before its body is there, so whoever can connect can
//! make the receiver read. A peer that has taken all of its slots waits for its own slots and for
//! nobody else's. While a request waits for a slot, bodies that come too slowly lose theirs early:
//! see `body.rs`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots of a receiver.
pub(super) struct Slots {
    all: Pool,
    per_peer: usize,
    /// Peers whose requests wait for a slot or have one.
    peers: Mutex<HashMap<IpAddr, Arc<Pool>>>,
}

/// Slots, and how many requests wait for one.
struct Pool {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Pool {
    fn new(slots: usize) -> Self {
        let slots = slots.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(slots)), waiting: AtomicUsize::new(0) }
    }

    async fn take(&self) -> OwnedSemaphorePermit {
        let free = Arc::clone(&self.free);
        if let Ok(slot) = Arc::clone(&free).try_acquire_owned() {
            return slot;
        }
        let _waiting = Waiting::new(&self.waiting);
        free.acquire_owned().await.expect("it is never closed")
    }

    fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// One who waits, until it is dropped.
struct Waiting<'p>(&'p AtomicUsize);

impl<'p> Waiting<'p> {
    fn new(count: &'p AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Slots {
    pub(super) fn new(slots: usize, per_peer: usize) -> Self {
        Self { all: Pool::new(slots), per_peer, peers: Mutex::default() }
    }

    /// Waits for a slot.
    pub(super) async fn take(&self, peer: Option<IpAddr>) -> Slot<'_> {
        let peer = peer.map(|address| PeerPool::of(self, network(address)));
        // The peer's slot first: who waits for it must not keep one of all the others.
        let of_peer = match &peer {
            Some(peer) => Some(peer.pool.take().await),
            None => None,
        };
        let of_all = self.all.take().await;
        Slot { _permits: (of_peer, of_all), peer, slots: self }
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Arc<Pool>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leave to read one body, until it is dropped.
pub(super) struct Slot<'s> {
    _permits: (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit),
    peer: Option<PeerPool<'s>>,
    slots: &'s Slots,
}

impl Slot<'_> {
    /// Whether somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.slots.all.is_wanted() || self.peer.as_ref().is_some_and(|peer| peer.pool.is_wanted())
    }
}

/// A peer's slots. The last of its requests to leave removes them.
struct PeerPool<'s> {
    slots: &'s Slots,
    network: IpAddr,
    pool: Arc<Pool>,
}

impl<'s> PeerPool<'s> {
    fn of(slots: &'s Slots, network: IpAddr) -> Self {
        let mut peers = slots.peers();
        let pool = peers.entry(network).or_insert_with(|| Arc::new(Pool::new(slots.per_peer)));
        Self { slots, network, pool: Arc::clone(pool) }
    }
}

impl Drop for PeerPool<'_> {
    fn drop(&mut self) {
        let mut peers = self.slots.peers();
        // One in the map, and one here.
        if Arc::strong_count(&self.pool) == 2 {
            peers.remove(&self.network);
        }
    }
}

/// What counts as one peer: an IPv4 address, or a network of 64 bits, which is the least that a
/// host of IPv6 has to itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// Who has sent a request: the address of the connection, or what the last of `proxies` proxies
/// says of it in `x-forwarded-for`. `None` if nobody knows.
pub(super) fn peer(parts: &Parts, proxies: usize) -> Option<IpAddr> {
    let connected = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    if proxies == 0 {
        return connected;
    }
    // Each proxy appends whom it was connected to by. What stands before is anybody's.
    let forwarded = parts.headers.get_all("x-forwarded-for").iter().rev();
    let mut addresses = forwarded.flat_map(|value| value.to_str().unwrap_or("").rsplit(','));
    let named = addresses.nth(proxies - 1).and_then(|text| {
        let text = text.trim();
        let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
        text.parse().ok().or_else(with_port)
    });
    named.or(connected)
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use axum::http::Request;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[tokio::test]
    async fn a_peer_waits_for_its_own_slots_alone() {
        let slots = Slots::new(3, 2);
        let stranger = address("2001:db8::1");
        let (first, second) = (slots.take(stranger).await, slots.take(stranger).await);
        assert!(!first.is_wanted());
        // Of the same network, as a host has all of it.
        let mut third = Box::pin(slots.take(address("2001:db8::ffff:1")));
        assert!(poll(third.as_mut()).is_pending());
        assert!(first.is_wanted() && second.is_wanted());
        for other in [address("2001:db8:0:1::1"), address("192.0.2.1"), None] {
            let Poll::Ready(slot) = poll(pin!(slots.take(other))) else { panic!("{other:?}") };
            assert!(!slot.is_wanted(), "nobody waits for this peer's");
        }
        drop(first);
        assert!(poll(third.as_mut()).is_ready());
        assert!(!second.is_wanted());
        drop(third);
        assert_eq!(slots.peers().len(), 1, "one is still there");
        drop(second);
        assert!(slots.peers().is_empty());
    }

    #[tokio::test]
    async fn all_peers_together_have_an_end_as_well() {
        let slots = Slots::new(1, 9);
        let slot = slots.take(None).await;
        let mut waiting = Box::pin(slots.take(address("192.0.2.1")));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(slot.is_wanted());
        drop(waiting);
        assert!(!slot.is_wanted() && slots.peers().is_empty());
    }

    #[test]
    fn a_peer_behind_proxies_is_whom_they_name() {
        let peer_of = |forwarded: &[&str], proxies| {
            let mut request = Request::new(());
            let connected: SocketAddr = "192.0.2.9:1".parse().unwrap();
            request.extensions_mut().insert(ConnectInfo(connected));
            for value in forwarded {
                request.headers_mut().append("x-forwarded-for", value.parse().unwrap());
            }
            peer(&request.into_parts().0, proxies).unwrap().to_string()
        };
        let lines = ["203.0.113.1, 203.0.113.2", "203.0.113.3:443,2001:db8::1"];
        // Without proxies, anybody can write the header.
        assert_eq!(peer_of(&lines, 0), "192.0.2.9");
        for (proxies, expected) in
            [(1, "2001:db8::1"), (2, "203.0.113.3"), (3, "203.0.113.2"), (9, "192.0.2.9")]
        {
            assert_eq!(peer_of(&lines, proxies), expected);
        }
        assert_eq!(peer_of(&["unknown"], 1), "192.0.2.9");
    }
}
