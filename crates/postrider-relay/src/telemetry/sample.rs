//! Looks at the database for the metrics that only it can tell, in the background: a scrape never
//! waits for it, and however many there are, they cost the database nothing. Alarms look at what was
//! found.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Telemetry;
use super::alarms::Alarms;
use crate::admin::{Admin, OutboxStatus};
use crate::config::{AlarmConfig, SourceConfig};
use crate::shutdown::Shutdown;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources;

/// How often is looked.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// How often is looked until it has worked once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// So many looks in a row fail before the log says so: a relay that starts has told why already.
const FAILURES_TOLD: u32 = 3;
/// The longest time for one look.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Looks until a stop is asked for. An error is counted and tried again.
pub(crate) async fn run(
    telemetry: Arc<Telemetry>,
    source: SourceConfig,
    alarms: Option<AlarmConfig>,
    mut shutdown: Shutdown,
) {
    let mut alarms = alarms.map(Alarms::new);
    let looking = async {
        let mut admin = None;
        let (mut pause, mut failures) = (FIRST_PAUSE, 0);
        loop {
            match timeout(LOOK_MAX, look(&source, &mut admin)).await.unwrap_or_else(|_| late()) {
                Ok(status) => {
                    if let Some(alarms) = &mut alarms {
                        let missed = telemetry.last_reconciled();
                        alarms.look(&telemetry.pipelines(), &status, missed.as_ref());
                    }
                    telemetry.sampled(status);
                    (pause, failures) = (SAMPLE_EVERY, 0);
                }
                Err(error) => {
                    admin = None;
                    telemetry.not_sampled();
                    failures += 1;
                    if failures == FAILURES_TOLD {
                        warn!(
                            error = error.details(),
                            "no metrics of what waits in the outbox, and no alarms"
                        );
                    }
                }
            }
            sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.requested() => {}
        () = looking => {}
    }
}

async fn look(
    source: &SourceConfig,
    admin: &mut Option<Box<dyn Admin>>,
) -> Result<OutboxStatus, SourceError> {
    let admin = match admin {
        Some(admin) => admin,
        None => {
            let SourceConfig { url, table, columns, .. } = source;
            admin.insert(sources::connect_admin(url.expose(), table, columns).await?)
        }
    };
    admin.status().await
}

fn late() -> Result<OutboxStatus, SourceError> {
    Err(SourceError::new(SourceErrorKind::Unavailable, "no answer in time"))
}
