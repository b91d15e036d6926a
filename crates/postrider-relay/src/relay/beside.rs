//! What a relay does beside its pipelines: it listens for hints, answers HTTP, hears of pauses, looks
//! for missed events and for what an operator should know, and looks after the size of the outbox.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use super::RelayError;
use crate::config::{AlarmConfig, HttpConfig, PruneConfig, SourceConfig};
use crate::hint::{Hint, HintSocket};
use crate::pauses::{self, Known};
use crate::prune;
use crate::reconcile::schedule::{self, Net};
use crate::shutdown::Shutdown;
use crate::telemetry::server::Server;
use crate::telemetry::{Telemetry, sample};

/// What a configuration asks for beside the pipelines.
pub(super) struct Beside {
    pub(super) source: SourceConfig,
    pub(super) http: Option<HttpConfig>,
    pub(super) alarms: Option<AlarmConfig>,
    /// What is done with the outbox; `None` leaves that to other relays.
    pub(super) upkeep: Option<Upkeep>,
}

/// What a relay that stays does with its outbox.
pub(super) struct Upkeep {
    pub(super) prune: Option<PruneConfig>,
    pub(super) net: Option<Net>,
}

/// An address that cannot be had.
pub(super) struct CannotListen {
    address: SocketAddr,
    source: Arc<io::Error>,
    for_http: bool,
}

impl Beside {
    /// Starts all of it, until a stop is asked for.
    pub(super) async fn start(
        self,
        hint: &Hint,
        telemetry: &Arc<Telemetry>,
        pauses: watch::Sender<Known>,
        shutdown: Shutdown,
    ) -> Result<JoinSet<()>, CannotListen> {
        let Self { source, http, alarms, upkeep } = self;
        let mut tasks = JoinSet::new();
        if let Some(address) = source.hint {
            let socket = HintSocket::bind(address).await;
            let socket = socket.map_err(|error| CannotListen::at(address, error, false))?;
            let (hint, mut shutdown) = (hint.clone(), shutdown.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = shutdown.requested() => {}
                    never = socket.listen(&hint) => match never {},
                }
            });
        }
        if let Some(http) = &http {
            let server = Server::bind(http).await;
            let server = server.map_err(|error| CannotListen::at(http.listen, error, true))?;
            let address = server.address().unwrap_or(http.listen);
            info!(%address, "serving /metrics, /livez and /readyz");
            tasks.spawn(server.serve(telemetry.clone(), shutdown.clone()));
        }
        if http.is_some() || alarms.is_some() {
            let (telemetry, source) = (telemetry.clone(), source.clone());
            tasks.spawn(sample::run(telemetry, source, alarms, shutdown.clone()));
        }
        tasks.spawn(pauses::follow(source.clone(), pauses, shutdown.clone()));
        if let Some(Upkeep { prune, net }) = upkeep {
            if let Some(net) = net {
                tasks.spawn(schedule::run(net, telemetry.clone(), shutdown.clone()));
            }
            tasks.spawn(prune::run(source, prune, shutdown));
        }
        Ok(tasks)
    }
}

impl CannotListen {
    fn at(address: SocketAddr, error: io::Error, for_http: bool) -> Self {
        Self { address, source: Arc::new(error), for_http }
    }

    /// The error of a pipeline that cannot run for that reason.
    pub(super) fn to_error(&self) -> RelayError {
        let (address, source) = (self.address, self.source.clone());
        match self.for_http {
            true => RelayError::Http { address, source },
            false => RelayError::Hint { address, source },
        }
    }
}
