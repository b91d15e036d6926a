//! One connection to a server, for as long as it lasts.
//!
//! The client would connect again by itself and then send what was left in its queue, maybe hours
//! after the call that put it there was given up. By then another relay may have published the
//! event and those after it, and the stream may have forgotten its id, so that the old event would
//! appear once more behind newer ones. Therefore a client is made to end with its connection (see
//! `connecting.rs`): its queue ends with it, and the next call connects anew.
//!
//! What was given up while a connection lasts is harmless: the client sends in the order in which
//! it was told, so an event that is published again comes after its first copy and before all
//! later events of its key, and the stream knows it by its id.
//!
//! Confirmations arrive in the inbox of a [`Lane`]. A call has a lane for itself and gives it back
//! at its end; one that is given up takes it along. So no confirmation can reach another call, and
//! no task has to hand them out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Request, RequestErrorKind, Subscriber};
use bytes::Bytes;
use tokio::sync::{OnceCell, watch};

use super::said::{Listener, Said};
use super::unavailable;
use crate::sink::SinkError;

pub(super) struct Connection {
    pub(super) client: Client,
    /// `host:port`.
    pub(super) server: String,
    /// Whether the server is part of a cluster.
    pub(super) is_clustered: bool,
    /// Set once the stream was found or made, if it is to be made.
    pub(super) stream_is_there: OnceCell<()>,
    listener: Listener,
    lanes: Mutex<Vec<Lane>>,
}

/// An inbox for the confirmations of one call at a time.
pub(super) struct Lane {
    pub(super) subscriber: Subscriber,
    inbox: String,
    calls: u64,
}

impl Lane {
    /// What the subjects of all confirmations of the next call begin with.
    pub(super) fn next_prefix(&mut self) -> String {
        self.calls += 1;
        format!("{}.{}.", self.inbox, self.calls)
    }
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The relay's user may not ask.
    Denied(SinkError),
    /// Nobody is there to answer.
    NoResponders,
    /// The connection has ended, or the answer takes too long.
    Unavailable(SinkError),
}

impl Connection {
    pub(super) fn new(client: Client, server: String, listener: Listener) -> Self {
        let is_clustered = client.server_info().cluster.is_some();
        let (stream_is_there, lanes) = (OnceCell::new(), Mutex::default());
        Self { client, server, is_clustered, stream_is_there, listener, lanes }
    }

    /// Whether it lasts, and everything was allowed so far: what is denied may be permitted by
    /// now, and a new connection has forgotten it.
    pub(super) fn is_usable(&self) -> bool {
        self.client.connection_state() == State::Connected && !self.listener.said().denies()
    }

    /// The most bytes that the server takes for a message, headers included.
    pub(super) fn bytes_max(&self) -> usize {
        self.client.max_payload()
    }

    /// What the server says from now on, and has said.
    pub(super) fn listen(&self) -> watch::Receiver<Said> {
        self.listener.listen()
    }

    /// A lane that nobody else has.
    pub(super) async fn lane(&self) -> Result<Lane, SinkError> {
        let free = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(lane) = free {
            return Ok(lane);
        }
        let inbox = self.client.new_inbox();
        let subscribed = self.client.subscribe(format!("{inbox}.>")).await;
        let subscriber = subscribed.map_err(|_| self.lost())?;
        Ok(Lane { subscriber, inbox, calls: 0 })
    }

    pub(super) fn give_back(&self, lane: Lane) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    /// Asks a service of the server.
    pub(super) async fn request(
        &self,
        subject: String,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, NoAnswer> {
        let mut said = self.listen();
        let denied = async {
            let denies = |said: &Said| said.denial_of(&subject).is_some();
            let said = said.wait_for(denies).await;
            said.ok().and_then(|said| said.denial_of(&subject))
        };
        let request = Request::new().payload(body).timeout(Some(timeout));
        let asked = tokio::select! {
            asked = self.client.send_request(subject.clone(), request) => asked,
            Some(error) = denied => return Err(NoAnswer::Denied(error)),
        };
        match asked {
            Ok(message) => Ok(message.payload),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                Err(NoAnswer::NoResponders)
            }
            Err(error) if error.kind() == RequestErrorKind::TimedOut => {
                let server = &self.server;
                let message = format!("JetStream of {server} did not answer within {timeout:?}");
                Err(NoAnswer::Unavailable(unavailable(message)))
            }
            Err(_) => Err(NoAnswer::Unavailable(self.lost())),
        }
    }

    /// The connection has ended, maybe because of one of the messages that were under way.
    pub(super) fn lost(&self) -> SinkError {
        let said = self.listener.said().last_shown();
        let message = format!("the connection to {} was lost{said}", self.server);
        unavailable(message).with_company(true)
    }
}
