//! What is found out before a consumer begins.

use std::error::Error as _;
use std::time::Duration;

use postrider::{ServerError, WriteError};
use uuid::Uuid;

use crate::consumer::ConsumerError;
use crate::database::Database;
use crate::processor::Processor;
use crate::subscription::{Redelivery, Subscription};

/// Whether the consumer can do its work, as far as that can be known now. A database or a broker
/// that is away is no reason against it.
pub(crate) async fn ready<D: Database, S: Subscription>(
    processor: &Processor<D>,
    subscription: &S,
    retention: Duration,
) -> Result<(), ConsumerError> {
    match try_claim(processor).await {
        Err(error) if is_mistake(&error) => return Err(ConsumerError::Inbox(error)),
        // Whoever works on events says that it is away.
        Ok(()) | Err(_) => {}
    }
    let (consumer, broker) = (&processor.consumer, subscription.name());
    let keeps = match subscription.redelivery().await {
        Ok(Redelivery::Within(window)) if window < retention => return Ok(()),
        Ok(Redelivery::Unlimited) if retention == Duration::MAX => return Ok(()),
        Ok(Redelivery::Unknown) => return Ok(()),
        Err(error) if error.is_final => return Err(ConsumerError::Subscription(error)),
        Err(error) => {
            let cause = error.source.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%consumer, broker, %error, cause, "it is not known for how long events may come again");
            return Ok(());
        }
        Ok(Redelivery::Within(window)) => format!("for {window:?}"),
        Ok(Redelivery::Unlimited) => "for ever".to_owned(),
    };
    Err(ConsumerError::Misconfigured(format!(
        "claims are kept for {retention:?}, and {broker} keeps events {keeps}: one that comes again \
         after its claim is gone would have its effect twice; keep claims for longer with \
         `retention` (Duration::MAX is for ever), or let the broker keep events for less"
    )))
}

/// Claims what no event has, and gives it up again.
async fn try_claim<D: Database>(processor: &Processor<D>) -> Result<(), WriteError> {
    let mut tx = processor.database.begin().await?;
    D::claim_all(&mut tx, &processor.consumer, &[Uuid::nil()]).await.map(drop)
}

/// Whether somebody has to mend it.
fn is_mistake(error: &WriteError) -> bool {
    let said = error.source().and_then(|source| source.downcast_ref::<ServerError>());
    // No permission.
    let is_forbidden = said.and_then(ServerError::code) == Some("42501");
    is_forbidden || matches!(error, WriteError::NotMigrated { .. } | WriteError::Invalid(_))
}
