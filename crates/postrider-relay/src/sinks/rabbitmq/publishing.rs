//! Publishes the messages of a call on its lane.
//!
//! All are sent before the first confirmation is waited for. Confirmations are then looked at in
//! the order of the messages, which wakes the call a few times and not for each of them.
//!
//! lapin hands a returned message to whichever confirmation comes next, so what came back is
//! found by its id among all confirmations of the call. A return comes before the confirmation of
//! its own message, and each confirmation takes one return along: when all of a call's are there,
//! so are all its returns.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::{MaybeDone, maybe_done};
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use tokio::time::sleep;

use super::failure;
use super::lane::Lane;
use super::properties::{exchange, oversize, properties};
use crate::sink::{Message, SinkError};
use crate::sinks::PipelineFacts;

/// How the wait for the confirmations of a call ended.
enum End {
    Answered,
    Blocked,
    Late,
}

type Publishing<F> = Pin<Box<MaybeDone<F>>>;

impl Lane {
    /// Sends all messages and waits for their confirmations, as long as there are any within
    /// `longest`.
    pub(super) async fn publish(
        &mut self,
        messages: &[&Message],
        pipeline: &PipelineFacts,
        longest: Duration,
    ) -> Vec<Result<(), SinkError>> {
        // Until it is known to be otherwise: the call may be given up at any time.
        self.is_clean = false;
        let frame_bytes_max = self.connection.configuration().frame_max() as usize;
        let channel = self.channel.clone();
        let send = |message| send(&channel, message, pipeline, frame_bytes_max);
        let mut sent: Vec<_> =
            messages.iter().map(|message| Box::pin(maybe_done(send(message)))).collect();
        let end = self.wait(&mut sent, longest).await;
        let settled = look_at_all(&mut sent);
        // Once more: a confirmation that was not there yet may have taken the return of a
        // message along whose own confirmation was there a moment later.
        look_at_all(&mut sent);
        let outcomes: Vec<_> = sent.iter_mut().map(|one| one.as_mut().take_output()).collect();
        let is_answered =
            |outcome: &Option<Outcome>| matches!(outcome, Some(Ok(_) | Err(Unsent::Rejected(_))));
        self.is_clean = matches!(end, End::Answered) && outcomes.iter().all(is_answered);
        let returned = returned(&outcomes);
        let answer = |((message, outcome), is_settled): ((&&Message, Option<Outcome>), bool)| {
            match outcome {
                Some(Err(Unsent::Rejected(error))) => Err(error),
                Some(Err(Unsent::Failed(error))) => {
                    Err(failure::publishing(&error, message, &self.place))
                }
                Some(Ok(_)) if !returned.is_empty() && returned.contains(&id(message)) => {
                    Err(failure::unroutable(message, &self.place))
                }
                Some(Ok(Confirmation::Ack(_))) if is_settled => Ok(()),
                Some(Ok(Confirmation::Nack(_))) => Err(failure::nacked(message)),
                _ if matches!(end, End::Blocked) => Err(failure::blocked(&self.reason)),
                _ => Err(failure::unconfirmed(message, longest)),
            }
        };
        messages.iter().zip(outcomes).zip(settled).map(answer).collect()
    }

    async fn wait<F>(&mut self, sent: &mut [Publishing<F>], longest: Duration) -> End
    where
        F: Future<Output = Outcome>,
    {
        let mut answered = count(&look_at_all(sent));
        loop {
            let all = async {
                for one in &mut *sent {
                    one.as_mut().await;
                }
            };
            tokio::select! {
                biased;
                () = all => return End::Answered,
                () = self.until_blocked() => return End::Blocked,
                () = sleep(longest) => {}
            }
            let now = count(&look_at_all(sent));
            if now == answered {
                return End::Late;
            }
            answered = now;
        }
    }
}

/// What became of a message.
type Outcome = Result<Confirmation, Unsent>;

enum Unsent {
    Rejected(SinkError),
    Failed(lapin::Error),
}

/// Sends a message and waits for its confirmation. It is on its way after the first look.
async fn send(
    channel: &Channel,
    message: &Message,
    pipeline: &PipelineFacts,
    frame_bytes_max: usize,
) -> Outcome {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let properties = properties(message, pipeline);
    if let Some(error) = oversize(&properties, frame_bytes_max) {
        return Err(Unsent::Rejected(error));
    }
    let (exchange, key) = (exchange(&message.topic).into(), message.key.as_str().into());
    let publishing = channel.basic_publish(exchange, key, options, &message.body, properties);
    let confirmation = publishing.await.map_err(Unsent::Failed)?;
    confirmation.await.map_err(Unsent::Failed)
}

/// Which of them are answered. Nobody is woken for those that are not.
fn look_at_all<F>(sent: &mut [Publishing<F>]) -> Vec<bool>
where
    F: Future<Output = Outcome>,
{
    let mut context = Context::from_waker(Waker::noop());
    sent.iter_mut().map(|one| one.as_mut().poll(&mut context).is_ready()).collect()
}

fn count(answered: &[bool]) -> usize {
    answered.iter().filter(|is_answered| **is_answered).count()
}

/// The ids of all messages that came back.
fn returned(outcomes: &[Option<Outcome>]) -> HashSet<String> {
    let of = |outcome: &Option<Outcome>| match outcome {
        Some(Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message)))) => {
            message.properties.message_id().as_ref().map(ToString::to_string)
        }
        _ => None,
    };
    outcomes.iter().filter_map(of).collect()
}

fn id(message: &Message) -> String {
    message.event.id().to_string()
}
