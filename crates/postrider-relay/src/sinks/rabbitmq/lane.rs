//! A connection with one channel, for one call at a time.
//!
//! A call has a lane to itself, and what happens to the lane afterwards depends on how it ended:
//!
//! - Everything was answered: the lane is used again.
//! - Something is still under way, because the call was given up, nothing was confirmed in time
//!   or an error closed the channel: the lane is dropped. Its late answers could not be told from
//!   those of the next call.
//! - The server has blocked the connection: it is kept until that is over, because a new one
//!   would hear of the alarm only after it has published.

use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Event, ExchangeKind};
use tokio::time::{sleep, timeout};

use super::connecting::{Connector, Plug};
use super::failure::{self, Place};
use super::properties::exchange;
use crate::sink::{FailureKind, SinkError};

/// After the server has blocked the connection, it still confirms what it has read before.
const BLOCKED_GRACE: Duration = Duration::from_millis(250);
/// Nothing depends on it.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

pub(super) struct Lane {
    pub(super) channel: Channel,
    pub(super) connection: Connection,
    events: BoxStream<'static, Event>,
    /// Why the server has blocked the connection.
    pub(super) reason: String,
    pub(super) place: Place,
    /// Longest time for a question to be answered.
    timeout: Duration,
    /// Nothing is under way.
    pub(super) is_clean: bool,
    // Dropped last: until then an orderly end is possible.
    plug: Plug,
}

impl Lane {
    pub(super) async fn open(connector: &Connector) -> Result<Self, SinkError> {
        let (connection, plug) = connector.connect().await?;
        let place = connector.place().clone();
        let channel = open_channel(&connection, connector.answer_timeout()).await?;
        Ok(Self {
            channel,
            events: connection.events_listener().boxed(),
            connection,
            reason: String::new(),
            place,
            timeout: connector.answer_timeout(),
            is_clean: true,
            plug,
        })
    }

    /// Whether a call can have it.
    pub(super) fn is_usable(&self) -> bool {
        self.is_clean && self.channel.status().connected() && self.connection.status().connected()
    }

    /// Its connection, without the channel.
    pub(super) fn into_connection(self) -> (Connection, Plug) {
        (self.connection, self.plug)
    }

    /// Why the server has blocked it, if it has.
    pub(super) fn blocked(&mut self) -> Option<&str> {
        self.take_events();
        let status = self.connection.status();
        (status.connected() && status.blocked()).then_some(&self.reason)
    }

    /// Says goodbye to the server, if it listens.
    pub(super) async fn close(self) {
        // The plug ends what does not end by itself.
        let _ = timeout(GOODBYE_MAX, self.connection.close(200, "OK".into())).await;
    }

    /// Whether there is an exchange. Changes nothing.
    pub(super) async fn has_exchange(&mut self, topic: &str) -> Result<bool, SinkError> {
        if exchange(topic).is_empty() {
            return Ok(true);
        }
        let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
        match self.declare(topic, ExchangeKind::default(), passive).await {
            Ok(()) => Ok(true),
            Err(Refused { code: Some(NOT_FOUND), .. }) => Ok(false),
            Err(refused) => Err(refused.error),
        }
    }

    /// Makes an exchange. One of another type that somebody else has just made will do.
    pub(super) async fn make_exchange(&mut self, topic: &str, kind: &str) -> Result<(), SinkError> {
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = ExchangeKind::Custom(kind.to_owned());
        match self.declare(topic, kind, durable).await {
            Err(Refused { code: Some(PRECONDITION_FAILED), .. })
                if self.has_exchange(topic).await? =>
            {
                Ok(())
            }
            made => made.map_err(|refused| refused.error),
        }
    }

    async fn declare(
        &mut self,
        topic: &str,
        kind: ExchangeKind,
        options: ExchangeDeclareOptions,
    ) -> Result<(), Refused> {
        let declaring =
            self.channel.exchange_declare(topic.into(), kind, options, FieldTable::default());
        let Ok(declared) = timeout(self.timeout, declaring).await else {
            self.is_clean = false;
            let text = format!("no answer about the exchange {topic} within {:?}", self.timeout);
            let error = SinkError::new(FailureKind::Unavailable, text);
            return Err(Refused { code: None, error });
        };
        let Err(error) = declared else { return Ok(()) };
        let code = match error.kind() {
            lapin::ErrorKind::ProtocolError(said) => Some(said.get_id()),
            _ => None,
        };
        let error = failure::declaring(&error, topic, &self.place);
        // The refusal has closed the channel.
        match open_channel(&self.connection, self.timeout).await {
            Ok(channel) => self.channel = channel,
            Err(_) => self.is_clean = false,
        }
        Err(Refused { code, error })
    }

    /// Ends when the server has blocked the connection, and has had time to confirm what it has
    /// read before.
    pub(super) async fn until_blocked(&mut self) {
        loop {
            if self.blocked().is_some() {
                sleep(BLOCKED_GRACE).await;
                if self.blocked().is_some() {
                    return;
                }
            }
            match self.events.next().await {
                Some(event) => self.note(event),
                None => std::future::pending().await,
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(Some(event)) = self.events.next().now_or_never() {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        if let Event::ConnectionBlocked(reason) = event {
            self.reason = reason;
        }
    }
}

/// Why an exchange was not declared.
struct Refused {
    code: Option<u16>,
    error: SinkError,
}

async fn open_channel(connection: &Connection, longest: Duration) -> Result<Channel, SinkError> {
    let opening = async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok::<_, lapin::Error>(channel)
    };
    let unavailable = |why: String| {
        let text = format!("RabbitMQ opened no channel: {why}");
        SinkError::new(FailureKind::Unavailable, text)
    };
    let opened = timeout(longest, opening).await;
    let opened = opened.map_err(|_| unavailable(format!("no answer within {longest:?}")))?;
    opened.map_err(|error| unavailable(error.to_string()))
}
