//! A hint that there may be events to read, so that a source looks at once instead of at its next
//! poll.
//!
//! Hints are an optional help: losing one costs a poll's delay and nothing else. An application
//! in the same process gives one with [`Hint::give`]; any other sends an empty datagram to the
//! relay, which [`HintSocket`] receives.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::sleep;

/// However many datagrams come, the hint is given at most this often.
const GIVEN_EVERY: Duration = Duration::from_millis(1);
/// Most datagrams that are taken for one hint.
const TOGETHER_MAX: usize = 1024;

/// Wakes sources that wait for events. Its clones are one and the same hint.
#[derive(Clone, Debug, Default)]
pub struct Hint {
    given: Arc<Notify>,
}

impl Hint {
    /// A hint that nobody has given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells whoever waits now that it is worth looking.
    pub fn give(&self) {
        self.given.notify_waiters();
    }

    /// Waits until a hint is given. Every hint from this call on counts, also before the future
    /// is first polled: who calls this and then looks for events misses none.
    pub fn given(&self) -> impl Future<Output = ()> + Send {
        self.given.notified()
    }
}

impl PartialEq for Hint {
    /// Whether they are one and the same.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.given, &other.given)
    }
}

impl Eq for Hint {}

/// Gives a hint for the datagrams that come to an address.
#[derive(Debug)]
pub struct HintSocket {
    socket: UdpSocket,
}

impl HintSocket {
    /// Listens at an address, which has to be one of this host and free.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: UdpSocket::bind(address).await? })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Gives the hint whenever datagrams have come, whatever they hold. Runs until it is dropped.
    pub async fn listen(self, hint: &Hint) -> Infallible {
        loop {
            // An error says nothing about the next datagram, and the pause below bounds the loop.
            let _ = self.socket.readable().await;
            for _ in 0..TOGETHER_MAX {
                if self.socket.try_recv(&mut [0]).is_err() {
                    break;
                }
            }
            hint.give();
            sleep(GIVEN_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_hint_counts_from_the_moment_it_is_waited_for() {
        let hint = Hint::new();
        hint.give();
        let mut given = pin!(hint.given());
        assert!(given.as_mut().now_or_never().is_none(), "it was given before");
        let (given, other) = (hint.given(), hint.given());
        hint.clone().give();
        assert!(given.now_or_never().is_some() && other.now_or_never().is_some());
    }

    #[tokio::test]
    async fn datagrams_give_the_hint() {
        let socket = HintSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = socket.address().unwrap();
        let taken = HintSocket::bind(address).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);

        let hint = Hint::new();
        let listening = hint.clone();
        let listener = tokio::spawn(async move { socket.listen(&listening).await });
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in [&b""[..], &[7; 2000]] {
            let given = hint.given();
            sender.send_to(datagram, address).unwrap();
            tokio::time::timeout(Duration::from_secs(10), given).await.expect("the hint is given");
        }
        listener.abort();
    }

    /// Counts in real time, and only for too many, so that a slow machine does not matter.
    #[tokio::test]
    async fn many_datagrams_are_few_hints() {
        let socket = HintSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = socket.address().unwrap();
        let hint = Hint::new();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            sender.send_to(&[], address).unwrap();
        }
        let mut hints = 0;
        let counting = async {
            loop {
                hint.given().await;
                hints += 1;
            }
        };
        let while_listening = async {
            tokio::select! {
                _ = socket.listen(&hint) => {}
                () = counting => {}
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(50), while_listening).await;
        assert!((1..=50).contains(&hints), "{hints} hints");
    }
}
