//! A request that was verified.

use std::time::SystemTime;

use axum::extract::{FromRef, FromRequest, Request};
use postrider::Event;
use uuid::Uuid;

use super::body;
use super::headers::headers;
use super::refusal::Refusal;
use super::slots::{Slots, peer};
use super::verifier::{NotGenuine, Verifier};
use crate::decoding;
use crate::subscription::Incoming;

/// A request whose signature and time were verified, for a handler of axum that does the rest
/// itself: it claims [the event](Self::event) in its own transaction, and answers 2xx after the
/// commit. The [`Verifier`] is the router's state, or part of it.
///
/// ```
/// # fn main() -> Result<(), postrider_consumer::webhooks::BadSecret> {
/// use axum::{Router, http::StatusCode, routing::post};
/// use postrider_consumer::webhooks::{Refusal, Verifier, Webhook};
///
/// async fn receive(webhook: Webhook) -> Result<StatusCode, Refusal> {
///     let event = webhook.event()?;
///     // … a transaction: claim `event.id()`, have its effect, commit …
///     Ok(StatusCode::NO_CONTENT)
/// }
///
/// let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
/// let app: Router = Router::new().route("/orders", post(receive)).with_state(verifier);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The header `webhook-id`, the same with each delivery. It is signed.
    pub id: String,
    /// When this delivery was sent. It is signed.
    pub sent_at: SystemTime,
    /// The message. Its body is signed, its headers are not.
    pub incoming: Incoming,
}

impl Webhook {
    /// The event that it carries, in whichever of the relay's formats. Its id is a signed one: the
    /// header `webhook-id`, or that of the document in CloudEvents' structured mode.
    ///
    /// # Errors
    ///
    /// It carries none, or one with an id that is not `webhook-id`.
    pub fn event(&self) -> Result<Event, Refusal> {
        let event = decoding::decode(&self.incoming)?;
        // The content type is not signed: a payload must not be taken for a document with an id of
        // its own.
        let signed: Option<Uuid> = self.id.parse().ok();
        if signed.is_some_and(|id| id != event.id()) {
            return Err(NotGenuine::OtherId.into());
        }
        Ok(event)
    }

    /// Reads and verifies a request. With slots, a body that is not small waits for one; `proxies`
    /// stand between the receiver and its peers.
    pub(super) async fn read(
        verifier: &Verifier,
        slots: Option<(&Slots, usize)>,
        request: Request,
    ) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        // All that the head tells comes before the body, which need not be read for strangers.
        let signed = verifier.verify_head(&parts.headers, SystemTime::now())?;
        if let Err(refusal) = body::check_size(verifier, &body) {
            body::discard(body).await;
            return Err(refusal);
        }
        let body = match slots.filter(|_| !body::is_small(&body)) {
            Some((slots, proxies)) => {
                let slot = slots.take(peer(&parts, proxies)).await;
                body::read(verifier, body, &|| slot.is_wanted()).await?
            }
            None => body::read(verifier, body, &|| false).await?,
        };
        verifier.verify_body(&signed, &body)?;
        let headers = headers(signed.id, &parts.headers)?;
        let header = |name| {
            let found = headers.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.clone())
        };
        let incoming = Incoming {
            topic: header("postrider-topic").unwrap_or_default(),
            key: header("postrider-key").or_else(|| header("ce-partitionkey")),
            place: format!("webhook {}", signed.id),
            headers,
            body,
            is_revived: false,
        };
        Ok(Self { id: signed.id.to_owned(), sent_at: signed.sent_at, incoming })
    }
}

impl<S: Send + Sync> FromRequest<S> for Webhook
where
    Verifier: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        Self::read(&Verifier::from_ref(state), None, request).await
    }
}
