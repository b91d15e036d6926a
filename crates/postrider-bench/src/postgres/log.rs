//! PostgreSQL by log tailing: how fast the log is read, how late an event is, and what it costs the
//! server beside polling.

mod drain;

use postrider_relay::sources::{Mode, Progress};

use super::load::{self, Load, WRITERS};
use super::server::Server;
use super::{ROUNDS, Sizes};
use crate::Outcome;
use crate::report::{Report, Section, number};

pub(crate) use self::drain::{CHILD, run_child};

const PAYLOAD_BYTES: [usize; 2] = [200, 1_600];
const P99_MS_MAX: f64 = 10.0;
/// Single commits cannot be that many.
const FAST_TOGETHER: u64 = 20;

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresLog);
    drain::run(server, sizes, &mut report).await?;
    steady(server, sizes, &mut report).await?;
    fast(server, sizes, &mut report).await?;
    Ok(report)
}

/// A transaction that is larger than the memory of relay and walsender.
pub(super) async fn run_large(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresLarge);
    drain::run_large(server, sizes, &mut report).await?;
    Ok(report)
}

/// One load for each size of payloads.
fn loads(mode: Mode, sizes: Sizes) -> [Load; 2] {
    PAYLOAD_BYTES.map(|payload_bytes| Load {
        mode,
        progress: Progress::Cursor,
        hinted: false,
        events_per_second: 1_000,
        together: 1,
        payload_bytes,
        time: sizes.seconds(20),
    })
}

fn label(load: &Load) -> String {
    let mode = match load.mode {
        Mode::Cdc => "log tailing",
        Mode::Poll => "polling by cursor",
    };
    format!("{mode}, {}-byte payloads", number(load.payload_bytes as f64))
}

/// Lateness, and what it costs the server, beside polling.
async fn steady(server: &Server, sizes: Sizes, report: &mut Report) -> Outcome<()> {
    report.title(&format!(
        "postgres, from commit to sink at 1 000 events/s, one transaction each, {WRITERS} writers, \
         median of {ROUNDS}"
    ));
    let loads = [loads(Mode::Cdc, sizes), loads(Mode::Poll, sizes)].concat();
    let found = load::measure_all(server, &loads).await?;
    for (load, latency) in loads.iter().zip(&found) {
        let max = (load.mode == Mode::Cdc).then_some(P99_MS_MAX);
        latency.tell(report, &label(load), max);
    }
    report.title("postgres, the server's processor time for the relay meanwhile, per minute");
    for (load, latency) in loads.iter().zip(&found) {
        let more = format!("of {:.1} s of the whole server", latency.server_cpu);
        report.line(&label(load), &format!("{:.1} s", latency.relay_cpu), &more);
    }
    Ok(())
}

async fn fast(server: &Server, sizes: Sizes, report: &mut Report) -> Outcome<()> {
    report.title(&format!(
        "postgres, from commit to sink at 20 000 events/s, {FAST_TOGETHER} per transaction, \
         {WRITERS} writers, median of {ROUNDS}"
    ));
    let loads = loads(Mode::Cdc, sizes).map(|load| Load {
        events_per_second: 20_000,
        together: FAST_TOGETHER,
        ..load
    });
    for (load, latency) in loads.iter().zip(load::measure_all(server, &loads).await?) {
        latency.tell(report, &label(load), None);
    }
    Ok(())
}
