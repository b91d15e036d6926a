//! The scratch places of one run: made together, and removed together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_relay::scratch::{Claim, ScratchName};
use postrider_relay::sink::Sink;
use tokio::time::timeout;

use super::target::{SinkWay, Target};
use crate::error::{CliError, Code};

/// Longest time for removing everything.
const REMOVE_MAX: Duration = Duration::from_secs(60);

/// A place in the database, and one at the sink if it can have one.
pub(crate) struct Places<'t> {
    target: &'t Target,
    pub(crate) name: ScratchName,
    /// None is needed for what is at the sink alone.
    _claim: Option<Claim>,
    is_at_sink: AtomicBool,
}

impl<'t> Places<'t> {
    /// Claims a name. Nothing is made yet.
    pub(crate) async fn claim(target: &'t Target, name: ScratchName) -> Result<Self, CliError> {
        match target.database.claim(&name).await? {
            Some(claim) => {
                Ok(Self { target, name, _claim: Some(claim), is_at_sink: AtomicBool::new(false) })
            }
            None => {
                let what = format!("somebody else measures as {}", name.as_str());
                Err(CliError::new(Code::Unsafe, what).with_fix("run it again"))
            }
        }
    }

    /// What another process has left, in whatever state.
    pub(crate) fn of_another(target: &'t Target, name: ScratchName, claim: Option<Claim>) -> Self {
        Self { target, name, _claim: claim, is_at_sink: AtomicBool::new(true) }
    }

    /// Makes both. The database comes first and goes last: it is where leftovers are found.
    pub(crate) async fn make(&self, accounts: u32) -> Result<(), CliError> {
        self.target.database.make(&self.name, accounts).await?;
        if let Some(SinkWay::Scratch(sink)) = self.target.sink.as_ref().map(|sink| &sink.way) {
            sink.make(&self.name).await?;
            self.is_at_sink.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A connection to the sink, if there is one.
    pub(crate) async fn sink(&self) -> Result<Option<Box<dyn Sink>>, CliError> {
        Ok(match self.target.sink.as_ref().map(|sink| &sink.way) {
            None => None,
            Some(SinkWay::Scratch(sink)) => Some(sink.connect(&self.name).await?),
            Some(SinkWay::Sent(spec)) => Some(spec.connect().await?),
        })
    }

    /// Removes whatever there is, in any state. A sink that has never answered has nothing, or
    /// what [cleaning](super::cleaning) finds there when it is old.
    pub(crate) async fn remove(&self) -> Result<(), CliError> {
        let removing = async {
            let at_sink = match self.target.sink.as_ref().map(|sink| &sink.way) {
                Some(SinkWay::Scratch(sink)) => sink.remove(&self.name).await,
                _ => Ok(()),
            };
            // What is left at the sink is found by what is left here.
            if self.is_at_sink.load(Ordering::Relaxed) {
                at_sink?;
            }
            Ok(self.target.database.remove(&self.name).await?)
        };
        let removed = timeout(REMOVE_MAX, removing).await.unwrap_or_else(|_| {
            let what = format!("it was not removed within {} s", REMOVE_MAX.as_secs());
            Err(CliError::new(Code::Failure, what))
        });
        removed.map_err(|error: CliError| {
            let fix = format!("postrider bench --clean {}", self.target.flags);
            let mut left = CliError::new(error.code, format!("{} is left", self.name.as_str()));
            left.why.push(error.what);
            left.why.extend(error.why);
            left.with_fix(fix)
        })
    }
}
