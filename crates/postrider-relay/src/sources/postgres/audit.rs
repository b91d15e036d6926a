//! Audits a PostgreSQL database by its log.
//!
//! # Design
//!
//! - **A temporary slot** ends with the connection that reads it, whatever becomes of the process:
//!   nothing keeps the server's log afterwards. What was read is confirmed at once.
//! - **Its name does not begin with `postrider_`**: to `outbox_publish_message` a slot of such a name
//!   is a relay's, and it would write events that nobody reads.
//! - **Publications** are made before the slot, because the log is decoded by what was published at
//!   the time, and removed at the end (`publications`).
//! - **The end** is a message that the audit itself writes to the log: what was committed before has
//!   been read when it comes.
//! - **A connection that is lost** ends the audit. What is committed while there is no slot would be
//!   missed, and nobody would notice.

mod collector;
mod facts;
mod publications;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use async_trait::async_trait;
use postrider::schema::TableName;
use postrider_replication::{
    Connection as Streaming, Flow, Lsn, PgOutput, Replication, SlotOptions,
};
use tokio_postgres::types::Type;
use uuid::Uuid;

use self::collector::{Collector, Outbox};
use self::publications::{Publications, sweep};
use self::tables::Plan;
use super::Location;
use super::connection::{Connection, application_name, streaming};
use super::log::slot::Guard;
use super::log::{self, VALUE_BYTES_MAX, without_polling};
use super::queries::audit::{MARK_END, hold_name};
use super::table;
use crate::audit::{Audit, Seen, Watch, Watched};
use crate::shutdown::Shutdown;
use crate::source::{SourceError, SourceErrorKind};

/// How much is received ahead, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// What the names of slots and publications begin with; eight letters and digits follow.
const PREFIX: &str = "audit_postrider_";

/// Tells of the transactions of a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresAudit {
    connection: Connection,
    replication: Replication,
    collector: Collector,
    watched: Watched,
    /// Those of its own.
    publications: Option<Publications>,
    /// What its slot is called.
    name: String,
}

impl PostgresAudit {
    /// Connects, checks everything that the audit needs, and begins. Waits for transactions that
    /// are open. `columns` are those of a table that is not of our making: our name to its name.
    ///
    /// # Errors
    ///
    /// `Misconfigured` with all that stands in the way, `Unavailable` if the server cannot be
    /// reached or the wait is ended by a stop.
    pub async fn connect(
        location: Location,
        outbox: TableName,
        columns: BTreeMap<String, String>,
        watch: &Watch,
        shutdown: &Shutdown,
    ) -> Result<Self, SourceError> {
        let connection = Connection::new(location.clone(), "audit");
        let table = table::read(&connection, &outbox, &columns).await;
        let table = table.map_err(|trouble| trouble.while_doing("open the outbox"))?;
        let plan = Plan::make(&connection, outbox.as_str(), watch).await;
        let mut plan = plan.map_err(|trouble| trouble.while_doing("look at the tables"))?;
        let name = format!("{PREFIX}{}", &Uuid::now_v7().simple().to_string()[24..]);
        let streaming = streaming(&location, &application_name("audit streams")).await;
        let mut streaming = streaming.map_err(without_polling)?;
        streaming.query(&hold_name(&name)).await.map_err(|error| cannot("hold a lock", error))?;
        plan.notes.extend(sweep_noting(&connection).await);
        let own = watch.publications.is_empty();
        let own = own.then(|| Publications::new(&name, &plan.outbox, &plan.tables));
        if let Some(publications) = &own {
            let made = publications.make(&connection).await;
            made.map_err(|trouble| trouble.while_doing("publish the tables"))?;
        }
        let names = own.as_ref().map_or_else(|| watch.publications.clone(), Publications::names);
        let slot = Slot { location: &location, name: &name, publications: names };
        match slot.begin(streaming, shutdown).await {
            Ok((replication, since)) => Ok(Self {
                collector: Collector::new(plan.places(), Outbox::of(&table), &name),
                watched: Watched {
                    outbox: table.quoted().to_owned(),
                    tables: plan.watched,
                    since_lsn: since.to_string(),
                    notes: plan.notes,
                },
                connection,
                replication,
                publications: own,
                name,
            }),
            Err(error) => {
                if let Some(publications) = own {
                    publications.remove(&connection).await?;
                }
                Err(error)
            }
        }
    }
}

/// An error of the stream.
fn cannot(doing: &str, error: postrider_replication::Error) -> SourceError {
    without_polling(log::cannot(doing, error))
}

/// What could not be removed is told, and in nobody's way.
async fn sweep_noting(connection: &Connection) -> Vec<String> {
    match sweep(connection).await {
        Ok(kept) => {
            let note = |name| {
                format!("an audit that was killed has left a publication: DROP PUBLICATION {name}")
            };
            kept.into_iter().map(note).collect()
        }
        Err(trouble) => {
            let error = trouble.while_doing("look for what others have left").details();
            tracing::debug!(error, "publications of earlier audits were not looked for");
            Vec::new()
        }
    }
}

/// The slot of an audit.
struct Slot<'a> {
    location: &'a Location,
    name: &'a str,
    publications: Vec<String>,
}

impl Slot<'_> {
    /// Makes it, and begins to read. Answers from where on.
    async fn begin(
        self,
        mut streaming: Streaming,
        shutdown: &Shutdown,
    ) -> Result<(Replication, Lsn), SourceError> {
        let options = SlotOptions { temporary: true, ..SlotOptions::default() };
        let guard = Guard::new(streaming.canceller(), self.location.clone());
        let mut shutdown = shutdown.clone();
        let created = tokio::select! {
            created = streaming.create_slot(self.name, options) => created,
            () = shutdown.requested() => {
                let message = "stopped before the audit began, which waits for transactions that \
                               are open";
                let error = SourceError::new(SourceErrorKind::Unavailable, message);
                return Err(error.with_hint("look for them in pg_stat_activity"));
            }
        };
        guard.disarm();
        let since = created.map_err(|error| cannot("make a slot", error))?.consistent_point;
        let output = PgOutput {
            publications: self.publications,
            messages: true,
            // As text, what is shown of an event needs no type.
            ..PgOutput::default()
        };
        let flow = Flow {
            buffer_bytes: BUFFER_BYTES,
            value_bytes_max: VALUE_BYTES_MAX,
            ..Flow::default()
        };
        let replication = streaming.start(self.name, Lsn::ZERO, &output, flow).await;
        Ok((replication.map_err(|error| cannot("read the log", error))?, since))
    }
}

#[async_trait]
impl Audit for PostgresAudit {
    fn watched(&self) -> &Watched {
        &self.watched
    }

    async fn next(&mut self) -> Result<Seen, SourceError> {
        let batch = self.replication.next().await;
        let batch = batch.map_err(|error| cannot("read the log any further", error))?;
        let batch = batch.ok_or_else(|| {
            SourceError::new(SourceErrorKind::Unavailable, "the log is not read any more")
        })?;
        let mut seen = Seen::default();
        for frame in batch {
            let taken = self.collector.take(frame, &mut seen).map_err(|error| {
                let message = "the log has something that cannot be read";
                SourceError::new(SourceErrorKind::Unsafe, message)
                    .with_source(error)
                    .with_hint("report this, with the version of the server")
            })?;
            if let Some(position) = taken {
                self.replication.confirm(position);
            }
        }
        Ok(seen)
    }

    async fn mark_end(&mut self) -> Result<(), SourceError> {
        let marked = self.connection.query(MARK_END, &[(&self.name, Type::TEXT)]).await;
        marked.map(drop).map_err(|trouble| trouble.while_doing("mark the end of the audit"))
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        // The slot goes with the connection, however that ends.
        if let Err(error) = self.replication.stop().await {
            tracing::debug!(%error, "the stream was not ended in an orderly way");
        }
        if let Some(publications) = &self.publications {
            publications.remove(&self.connection).await?;
        }
        self.connection.close().await;
        Ok(())
    }
}
