//! Whether a relay lives, is ready, and gets on; and if not, why.
//!
//! | | what it says | who acts on it |
//! |---|---|---|
//! | live | every pipeline's loop turns, and none has ended for good by a failure | a restart |
//! | ready | every pipeline runs or stands by, source and sink are there, events move | nobody is sent here; a rollout waits |
//! | stuck | events wait, none is delivered, and neither source nor sink says why | systemd's watchdog |
//!
//! An outage of a broker makes a relay unready and never dead: a restart would not mend it.

use std::time::Duration;

use serde::Serialize;

use super::watched::{Stage, Watched};
use crate::pipeline::engine::Progress;
use crate::pipeline::{State, Status};

/// A pipeline's loop turns every second; one that has not for so long hangs.
pub const LOOP_STUCK_AFTER: Duration = Duration::from_secs(60);

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether all is well.
    pub ok: bool,
    /// Each pipeline, and each of its shards.
    pub pipelines: Vec<ShardHealth>,
}

/// How one shard of a pipeline is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardHealth {
    /// The pipeline's name.
    pub pipeline: String,
    /// Which shard of it.
    pub shard: u32,
    /// What it is doing.
    pub state: &'static str,
    /// Whether it is well.
    pub ok: bool,
    /// Why not, or what ails it although it is well enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What is known of a shard.
pub(super) struct Condition {
    pub(super) state: &'static str,
    pub(super) is_live: bool,
    pub(super) is_ready: bool,
    /// Live, and yet nothing moves for a reason that nobody knows.
    pub(super) is_stuck: bool,
    pub(super) source_is_up: bool,
    pub(super) sink_is_up: bool,
    pub(super) why: Option<String>,
}

impl Health {
    /// The answer, by what is asked of each shard.
    pub(super) fn of(shards: &[std::sync::Arc<Watched>], is_ok: fn(&Condition) -> bool) -> Self {
        let pipelines: Vec<ShardHealth> = shards
            .iter()
            .map(|watched| {
                let condition = Condition::of(watched);
                ShardHealth {
                    pipeline: watched.pipeline.clone(),
                    shard: watched.shard,
                    state: condition.state,
                    ok: is_ok(&condition),
                    why: condition.why,
                }
            })
            .collect();
        Self { ok: pipelines.iter().all(|pipeline| pipeline.ok), pipelines }
    }
}

impl Condition {
    pub(super) fn of(watched: &Watched) -> Self {
        let well = Self {
            state: "standing_by",
            is_live: true,
            is_ready: true,
            is_stuck: false,
            source_is_up: true,
            sink_is_up: true,
            why: None,
        };
        match watched.stage() {
            Stage::StandingBy => well,
            Stage::Connecting { to_sink, why } => {
                let end = if to_sink { "sink" } else { "source" };
                let why = why.map_or_else(
                    || format!("it connects to the {end}"),
                    |why| format!("it waits for the {end}: {why}"),
                );
                // The sink comes first: nothing is known of the source until then.
                Self {
                    state: "connecting",
                    is_ready: false,
                    source_is_up: false,
                    sink_is_up: !to_sink,
                    why: Some(why),
                    ..well
                }
            }
            Stage::Running(status) => {
                let turns = watched.counters.since_turn() < LOOP_STUCK_AFTER;
                running(&status.borrow(), turns)
            }
            Stage::Ended => Self { state: "ended", is_ready: false, ..well },
            Stage::Failed { why } => {
                let why = Some(why);
                Self { state: "failed", is_live: false, is_ready: false, why, ..well }
            }
        }
    }
}

fn running(status: &Status, turns: bool) -> Condition {
    let (state, stalled) = match status.state {
        // Where it left off, and whether the sink is there, is found out within time limits.
        State::Starting => ("starting", false),
        State::Running(_) if status.paused => ("paused", false),
        State::Running(Progress::Idle) => ("idle", false),
        State::Running(Progress::Moving) => ("moving", false),
        State::Running(Progress::Outage) => ("outage", false),
        State::Running(Progress::Stalled { .. }) => ("stalled", true),
        State::Stopping => ("stopping", false),
        State::Stopped => ("stopped", false),
    };
    let is_running = matches!(status.state, State::Running(_));
    let hangs = is_running && !turns;
    let unreachable = status.source_trouble.as_ref().or(status.pauses_unknown.as_ref());
    let known = unreachable.or(status.trouble.as_ref());
    let why = match known {
        _ if hangs => Some("its loop does not turn any more".to_owned()),
        Some(trouble) => Some(trouble.clone()),
        None if stalled => Some("events wait, and none is delivered".to_owned()),
        None => None,
    };
    Condition {
        state,
        is_live: !hangs,
        is_ready: !hangs && status.is_ready(),
        is_stuck: stalled && known.is_none(),
        source_is_up: unreachable.is_none(),
        sink_is_up: !status.sink_away && !status.circuit_open,
        why,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::watch;

    use super::*;
    use crate::pipeline::Totals;
    use crate::relay::RelayError;

    fn watched(stage: Stage) -> Arc<Watched> {
        let watched = Watched::new("orders", 0, Arc::default());
        watched.set(stage);
        Arc::new(watched)
    }

    fn runs(status: Status) -> Stage {
        Stage::Running(watch::Sender::new(status).subscribe())
    }

    fn status(progress: Progress) -> Status {
        Status { state: State::Running(progress), ..Status::default() }
    }

    /// State, live, ready, stuck, source and sink, in this order.
    fn facts(stage: Stage) -> (&'static str, [bool; 5]) {
        let it = Condition::of(&watched(stage));
        (it.state, [it.is_live, it.is_ready, it.is_stuck, it.source_is_up, it.sink_is_up])
    }

    #[tokio::test]
    async fn every_stage_has_its_answer() {
        let stalled = Progress::Stalled { since: Duration::ZERO };
        let why = || Some("refused".to_owned());
        let outage = Status { circuit_open: true, trouble: why(), ..status(Progress::Outage) };
        let away = Status { sink_away: true, ..status(Progress::Idle) };
        let no_source = Status { source_trouble: why(), ..status(Progress::Idle) };
        let pauses_unknown = Status { pauses_unknown: why(), ..status(Progress::Idle) };
        let paused = Status { paused: true, ..status(Progress::Idle) };
        let waits = Status { trouble: why(), circuit_open: true, ..status(stalled) };
        let connecting = |to_sink| Stage::Connecting { to_sink, why: None };
        for (stage, state, expected) in [
            (connecting(true), "connecting", [true, false, false, false, false]),
            (connecting(false), "connecting", [true, false, false, false, true]),
            (Stage::StandingBy, "standing_by", [true, true, false, true, true]),
            (runs(Status::default()), "starting", [true, false, false, true, true]),
            (runs(status(Progress::Idle)), "idle", [true, true, false, true, true]),
            (runs(status(Progress::Moving)), "moving", [true, true, false, true, true]),
            (runs(outage), "outage", [true, false, false, true, false]),
            (runs(away), "idle", [true, false, false, true, false]),
            (runs(no_source), "idle", [true, false, false, false, true]),
            (runs(pauses_unknown), "idle", [true, false, false, false, true]),
            (runs(paused), "paused", [true, true, false, true, true]),
            (runs(status(stalled)), "stalled", [true, false, true, true, true]),
            (runs(waits), "stalled", [true, false, false, true, false]),
            (Stage::Ended, "ended", [true, false, false, true, true]),
            (Stage::Failed { why: "no topic".into() }, "failed", [false, false, false, true, true]),
        ] {
            assert_eq!(facts(stage), (state, expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_not_live() {
        let watched = watched(runs(status(Progress::Moving)));
        let health = || Health::of(std::slice::from_ref(&watched), |it| it.is_live);
        tokio::time::advance(LOOP_STUCK_AFTER - Duration::from_secs(1)).await;
        assert!(health().ok, "{:?}", health());
        tokio::time::advance(Duration::from_secs(1)).await;
        let hangs = health();
        assert_eq!(hangs.pipelines[0].why.as_deref(), Some("its loop does not turn any more"));
        assert!(!hangs.ok);
        watched.counters.turned(0, false);
        assert!(health().ok);
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let watched = watched(Stage::StandingBy);
        watched.ended(&Err(RelayError::Panicked));
        let condition = Condition::of(&watched);
        let why = condition.why.unwrap();
        assert!(why.contains("panicked") && why.ends_with("report it, with the log"), "{why}");
        watched.ended(&Ok(Totals::default()));
        assert!(Condition::of(&watched).is_live);
    }

    #[test]
    fn the_json_has_a_fixed_form() {
        let shards =
            [watched(Stage::StandingBy), watched(Stage::Failed { why: "no topic".into() })];
        let health = Health::of(&shards, |condition| condition.is_ready);
        assert_eq!(
            serde_json::to_string(&health).unwrap(),
            r#"{"ok":false,"pipelines":[{"pipeline":"orders","shard":0,"state":"standing_by","ok":true},{"pipeline":"orders","shard":0,"state":"failed","ok":false,"why":"no topic"}]}"#
        );
    }
}
