//! Pruning inside a relay: now and then, for as long as it runs.

use std::time::Duration;

use tracing::{info, warn};

use super::{Left, PruneOptions, Pruned};
use crate::config::{PruneConfig, SourceConfig};
use crate::shutdown::Shutdown;
use crate::source::SourceError;
use crate::sources;

/// How often is looked after an outbox from which nothing is removed.
const UPKEEP_EVERY: Duration = Duration::from_secs(10 * 60);
/// How long the first look waits: a relay that cannot start has ended by then, and says why by
/// itself.
const FIRST_PAUSE: Duration = Duration::from_secs(3);
/// The longest pause after an error.
const ERROR_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Looks after the size of an outbox until a stop is asked for: makes room ahead, and removes
/// what is past its retention if there is one. An error is logged and tried again; it never ends
/// this, and so never a relay.
pub async fn run(source: SourceConfig, config: Option<PruneConfig>, mut shutdown: Shutdown) {
    let every = config.as_ref().map_or(UPKEEP_EVERY, |config| config.every);
    let mut options = config.map(|config| PruneOptions {
        keep: config.keep,
        archive: config.archive,
        unmatched: config.unmatched,
        dry_run: false,
        from: None,
    });
    let mut told = Vec::new();
    pause(every.min(FIRST_PAUSE), &mut shutdown).await;
    while !shutdown.is_requested() {
        let next = match tend(&source, options.as_ref(), &shutdown).await {
            Ok(pruned) => {
                tell(&pruned, &mut told);
                if let Some(options) = &mut options {
                    options.from = pruned.left_off;
                }
                every
            }
            Err(error) => {
                let error = error.details();
                match options {
                    Some(_) => warn!(error, "the outbox could not be pruned; trying again"),
                    None => warn!(error, "the outbox could not be looked after; trying again"),
                }
                every.min(ERROR_PAUSE_MAX)
            }
        };
        pause(next, &mut shutdown).await;
    }
}

async fn pause(duration: Duration, shutdown: &mut Shutdown) {
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        () = shutdown.requested() => {}
    }
}

async fn tend(
    source: &SourceConfig,
    options: Option<&PruneOptions>,
    shutdown: &Shutdown,
) -> Result<Pruned, SourceError> {
    let mut stop = shutdown.clone();
    let connect = sources::connect_prune(source.url.expose(), &source.table, &source.columns);
    let pruner = tokio::select! {
        connected = connect => connected?,
        () = stop.requested() => return Ok(Pruned::default()),
    };
    let partitions = pruner.upkeep().await?;
    if partitions > 0 {
        info!(partitions, "created partitions ahead");
    }
    match options {
        Some(options) => pruner.prune(options, shutdown).await,
        None => Ok(Pruned::default()),
    }
}

/// Logs what was done, and why something was left when that is news.
fn tell(pruned: &Pruned, told: &mut Vec<Left>) {
    if pruned.rows > 0 {
        info!(rows = pruned.rows, archives = pruned.archives.len(), "pruned the outbox");
    }
    for partition in &pruned.partitions {
        info!(partition, "dropped a partition");
    }
    for left in pruned.left.iter().filter(|left| !told.contains(left)) {
        info!(reason = %left, "some events past their retention stay");
    }
    told.clone_from(&pruned.left);
}
