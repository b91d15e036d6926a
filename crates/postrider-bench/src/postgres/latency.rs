//! How late an event is at the sink, counted from its commit, and what a relay costs that has
//! nothing to do.

use postrider_relay::sources::{Mode, Progress};

use super::backlog::PAYLOAD_BYTES;
use super::load::{self, Load, WRITERS};
use super::server::Server;
use super::{ROUNDS, Sizes, idle};
use crate::Outcome;
use crate::report::{Report, Section};

const P99_MS_MAX: f64 = 25.0;

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresLatency);
    let steady = |progress, hinted| Load {
        mode: Mode::Poll,
        progress,
        hinted,
        events_per_second: 1_000,
        together: 1,
        payload_bytes: PAYLOAD_BYTES,
        time: sizes.seconds(20),
    };
    report.title(&format!(
        "postgres, from commit to sink at 1 000 events/s, one transaction each, {WRITERS} writers, \
         median of {ROUNDS}"
    ));
    let loads = [
        steady(Progress::Mark, false),
        steady(Progress::Mark, true),
        steady(Progress::Cursor, false),
        steady(Progress::Cursor, true),
    ];
    measure(server, &mut report, &loads, Some(P99_MS_MAX)).await?;
    report.title(&format!(
        "postgres, from commit to sink at 10 events/s, when the relay polls less, median of {ROUNDS}"
    ));
    let calm = loads.map(|load| Load { events_per_second: 10, time: sizes.seconds(30), ..load });
    measure(server, &mut report, &calm, None).await?;
    idle::run(server, sizes, &mut report).await?;
    Ok(report)
}

async fn measure(
    server: &Server,
    report: &mut Report,
    loads: &[Load],
    p99_ms_max: Option<f64>,
) -> Outcome<()> {
    let latencies = load::measure_all(server, loads).await?;
    for (load, latency) in loads.iter().zip(latencies) {
        let hint = if load.hinted { "with hint" } else { "no hint" };
        latency.tell(report, &format!("{}, {hint}", load.progress), p99_ms_max);
    }
    Ok(())
}
