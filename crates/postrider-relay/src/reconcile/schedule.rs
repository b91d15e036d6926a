//! The safety net inside a relay: looks now and then, for as long as it runs.
//!
//! A relay that only stands by leaves it to the one that has the first shard. What a look finds in
//! rows may just be under way in a relay's memory, so what is to be given back has to be found
//! [twice](confirmed), with the same event at the head of its key; and nothing is given back while
//! a pipeline is in trouble, because what it holds waits for the same reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::{Key, timestamp};
use tracing::{info, warn};

use super::{LIMIT, Missed};
use crate::config::{ReconcileConfig, SourceConfig};
use crate::pipeline::decision::random_jitter;
use crate::shutdown::Shutdown;
use crate::source::SourceError;
use crate::sources;
use crate::telemetry::Telemetry;

/// The longest time that the first look waits: a relay that cannot start has ended by then, and
/// says why by itself.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause after an error.
const ERROR_PAUSE_MAX: Duration = Duration::from_secs(60);
/// The longest time between the two looks that find an event.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);
/// So many events are named in the log after one look.
const NAMED_MAX: usize = 20;

/// What is to be looked at.
pub(crate) struct Net {
    pub(crate) source: SourceConfig,
    pub(crate) config: ReconcileConfig,
    /// What the pipeline that marks or removes rows wants; empty means all.
    pub(crate) aggregate_types: Vec<String>,
}

/// Looks until a stop is asked for. An error is logged and tried again; it never ends this, and so
/// never a relay.
pub(crate) async fn run(net: Net, telemetry: Arc<Telemetry>, mut shutdown: Shutdown) {
    let every = net.config.every;
    let mut told = Vec::new();
    let mut next = every.min(FIRST_PAUSE_MAX);
    loop {
        tokio::select! {
            () = tokio::time::sleep(spread(next)) => {}
            () = shutdown.requested() => return,
        }
        next = every;
        if !telemetry.has_first_shard() {
            telemetry.left_to_others();
            continue;
        }
        let looked = tokio::select! {
            looked = net.look(&telemetry) => looked,
            () = shutdown.requested() => return,
        };
        match looked {
            Ok(found) => {
                telemetry.reconciled(&found.missed, found.given_back);
                found.tell(&mut told);
            }
            Err(error) => {
                telemetry.not_reconciled();
                warn!(error = error.details(), "cannot look for missed events; trying again");
                next = every.min(ERROR_PAUSE_MAX);
            }
        }
    }
}

/// Relays that were started together do not look together.
fn spread(pause: Duration) -> Duration {
    let thousandths = 800 + (random_jitter() % 400) as u32;
    pause * thousandths / 1000
}

struct Found {
    missed: Vec<Missed>,
    given_back: u64,
}

impl Net {
    async fn look(&self, telemetry: &Telemetry) -> Result<Found, SourceError> {
        let SourceConfig { url, table, columns, .. } = &self.source;
        let ReconcileConfig { older_than, publish, .. } = self.config;
        let operator = sources::connect_operator(url.expose(), table, columns).await?;
        let mut missed = operator.missed(older_than, &self.aggregate_types, LIMIT).await?;
        if missed.iter().all(|it| it.kind.comes_by_itself()) {
            return Ok(Found { missed, given_back: 0 });
        }
        tokio::time::sleep(older_than.min(AGAIN_AFTER_MAX)).await;
        let again = operator.missed(older_than, &self.aggregate_types, LIMIT).await?;
        missed = confirmed(&missed, again);
        let given_back = match publish && telemetry.ready().ok {
            true => operator.give_back(&missed).await?,
            false => 0,
        };
        Ok(Found { missed, given_back })
    }
}

/// What two looks, one after the other, say was missed. An event that is under way, or behind
/// others of its key that are, may look as if it had been overtaken. But then the first of its key
/// is another one by the second look.
fn confirmed(first: &[Missed], mut again: Vec<Missed>) -> Vec<Missed> {
    let (before, now) = (heads(first), heads(&again));
    let is_stuck = |it: &Missed| before.get(&lane(it)) == now.get(&lane(it));
    let keep: Vec<bool> =
        again.iter().map(|it| it.kind.comes_by_itself() || is_stuck(it)).collect();
    let mut keep = keep.into_iter();
    again.retain(|_| keep.next().unwrap_or(false));
    again
}

type Lane = (String, Key);

fn lane(missed: &Missed) -> Lane {
    (missed.pipeline.clone(), missed.key.clone())
}

/// The first of each key.
fn heads(missed: &[Missed]) -> BTreeMap<Lane, i64> {
    let mut heads = BTreeMap::new();
    for it in missed {
        let head = heads.entry(lane(it)).or_insert(it.position);
        *head = it.position.min(*head);
    }
    heads
}

impl Found {
    /// Names what relays would not have found, when it is news.
    fn tell(&self, told: &mut Vec<(String, i64)>) {
        let place = |it: &Missed| (it.pipeline.clone(), it.position);
        let lost = || self.missed.iter().filter(|it| !it.kind.comes_by_itself());
        for it in lost().filter(|it| !told.contains(&place(it))).take(NAMED_MAX) {
            let Missed { kind, pipeline, event_id, since, .. } = it;
            let since = timestamp::to_text(*since);
            warn!(pipeline, event_id, %kind, since, "an event was missed: {}", kind.what());
        }
        if self.given_back > 0 {
            info!(events = self.given_back, "gave missed events back: they are published now");
        }
        *told = lost().map(place).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::reconcile::MissedKind;

    fn missed(kind: MissedKind, key: &str, position: i64) -> Missed {
        Missed {
            kind,
            pipeline: "orders".into(),
            position,
            event_id: position.to_string(),
            key: Key { aggregate_type: "Order".into(), aggregate_id: key.into() },
            since: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_is_under_way_was_not_missed() {
        use MissedKind::{Forgotten, Overtaken, Unpublished};
        let first = [
            missed(Overtaken, "busy", 1),
            missed(Overtaken, "busy", 2),
            missed(Overtaken, "stuck", 3),
            missed(Overtaken, "stuck", 4),
            missed(Overtaken, "done", 5),
            missed(Forgotten, "forgotten", 6),
        ];
        let again = vec![
            missed(Overtaken, "busy", 2),
            missed(Overtaken, "stuck", 3),
            missed(Overtaken, "stuck", 4),
            missed(Overtaken, "new", 7),
            missed(Unpublished, "late", 8),
            missed(Forgotten, "forgotten", 6),
        ];
        let found: Vec<i64> = confirmed(&first, again).iter().map(|it| it.position).collect();
        assert_eq!(found, [3, 4, 8, 6]);
    }

    #[test]
    fn relays_do_not_look_in_step() {
        let pauses: Vec<Duration> = (0..20).map(|_| spread(Duration::from_secs(10))).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        assert!(pauses.iter().all(|it| (8_000..12_000).contains(&it.as_millis())), "{pauses:?}");
    }
}
