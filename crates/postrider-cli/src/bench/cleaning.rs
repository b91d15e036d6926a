//! `postrider bench --clean`: removes what a run that was killed has left.

use std::time::SystemTime;

use postrider_relay::scratch::ScratchName;
use serde::Serialize;

use super::places::Places;
use super::target::{SinkWay, Target};
use crate::error::CliError;

/// What became of leftovers. People script against it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Cleaned {
    pub(crate) dry_run: bool,
    pub(crate) removed: Vec<String>,
    pub(crate) in_use: Vec<String>,
}

/// Removes all places that nobody uses any more.
pub(crate) async fn clean(target: &Target, dry_run: bool) -> Result<Cleaned, CliError> {
    let mut cleaned = Cleaned { dry_run, ..Cleaned::default() };
    for name in find(target).await? {
        let shown = name.as_str().to_owned();
        if !is_free(target, &name).await? {
            cleaned.in_use.push(shown);
            continue;
        }
        if !dry_run {
            Places::of_another(target, name).await?.remove().await?;
        }
        cleaned.removed.push(shown);
    }
    Ok(cleaned)
}

async fn find(target: &Target) -> Result<Vec<ScratchName>, CliError> {
    let mut names = target.database.list().await?;
    if let Some(SinkWay::Scratch(sink)) = target.sink.as_ref().map(|sink| &sink.way) {
        names.extend(sink.list().await?);
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// A place of this database is free if it can be claimed. One that is at the sink alone may belong
/// to somebody who measures another database: it is free when it is old.
async fn is_free(target: &Target, name: &ScratchName) -> Result<bool, CliError> {
    let is_here = target.database.list().await?.contains(name);
    if !is_here && !name.is_old(SystemTime::now()) {
        return Ok(false);
    }
    Ok(!is_here || target.database.claim(name).await?.is_some())
}
