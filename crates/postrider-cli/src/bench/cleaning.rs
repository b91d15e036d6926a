//! `postrider bench --clean`: removes what a run that was killed has left.

use std::time::SystemTime;

use postrider_relay::scratch::ScratchName;
use serde::Serialize;

use super::places::Places;
use super::target::{SinkWay, Target};
use crate::error::CliError;

/// What became of leftovers. People script against it.
#[derive(Debug, Serialize)]
pub(crate) struct Cleaned {
    pub(crate) dry_run: bool,
    pub(crate) removed: Vec<String>,
    pub(crate) in_use: Vec<String>,
}

/// What runs have left.
pub(crate) struct Leftovers<'t> {
    /// Nobody uses these any more. What is in the database is claimed: nobody else removes it, either.
    pub(crate) free: Vec<Places<'t>>,
    pub(crate) in_use: Vec<String>,
}

impl<'t> Leftovers<'t> {
    /// Finds them, and claims what is free.
    pub(crate) async fn find(target: &'t Target) -> Result<Self, CliError> {
        let mut leftovers = Self { free: Vec::new(), in_use: Vec::new() };
        let here = target.database.list().await?;
        for name in find(target, &here).await? {
            let is_here = here.contains(&name);
            let claim = if is_here { target.database.claim(&name).await? } else { None };
            // One that is at the sink alone may belong to somebody who measures another database.
            if claim.is_some() || !is_here && name.is_old(SystemTime::now()) {
                leftovers.free.push(Places::of_another(target, name, claim));
            } else {
                leftovers.in_use.push(name.as_str().to_owned());
            }
        }
        Ok(leftovers)
    }

    /// The names of those that are free.
    pub(crate) fn names(&self) -> Vec<String> {
        self.free.iter().map(|places| places.name.as_str().to_owned()).collect()
    }
}

/// What is here, and what is at the sink.
async fn find(target: &Target, here: &[ScratchName]) -> Result<Vec<ScratchName>, CliError> {
    let mut names = here.to_vec();
    if let Some(SinkWay::Scratch(sink)) = target.sink.as_ref().map(|sink| &sink.way) {
        names.extend(sink.list().await?);
    }
    names.sort();
    names.dedup();
    Ok(names)
}
