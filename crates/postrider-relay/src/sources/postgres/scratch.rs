//! Scratch outboxes in PostgreSQL: each in a schema of its own, which the sessions have as their
//! search path.
//!
//! A claim is an advisory lock of a session. A pooler in between would hand both the lock and the
//! search path to others, so it is found out whether they hold before anything is made.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use postrider::schema::TableName;
use postrider::{Event, Outbox};
use tokio::time::{Duration, Instant, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use super::connection::client;
use super::error::Trouble;
use super::queries::scratch as sql;
use super::{Location, PostgresOptions, PostgresSlots, migrate};
use crate::scratch::{Claim, Examined, Missing, ScratchDatabase, ScratchName, ScratchWriter};
use crate::slots::{SlotState, Slots as _};
use crate::source::{Source, SourceError, SourceErrorKind};
use crate::sources::{Mode, Progress};

/// Sessions that write at the same time.
const WRITERS: usize = 8;
/// How long the server may take to end the session that read a slot.
const SLOT_FREE_MAX: Duration = Duration::from_secs(10);
const SLOT_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Scratch outboxes of one database.
#[derive(Debug)]
pub struct PostgresScratch {
    location: Location,
}

impl PostgresScratch {
    /// Nothing is connected before the first call.
    pub fn new(location: Location) -> Self {
        Self { location }
    }

    async fn client(&self) -> Result<Client, Trouble> {
        client(&self.location).await
    }

    fn inside(&self, name: &ScratchName) -> Location {
        self.location.with_search_path(name.as_str())
    }

    /// A session whose tables are those of the place, and no others.
    async fn client_inside(&self, name: &ScratchName) -> Result<Client, Trouble> {
        let connected = client(&self.inside(name)).await;
        let client = match connected {
            Err(Trouble::Refused(error)) if error.message.contains("cannot connect") => {
                return Err(without_pooler(error).into());
            }
            connected => connected?,
        };
        let schema: Option<String> = client.query_typed_one(sql::SCHEMA, &[]).await?.try_get(0)?;
        if schema.as_deref() == Some(name.as_str()) {
            return Ok(client);
        }
        let message = "the server does not use the search path that it was told";
        Err(without_pooler(SourceError::new(SourceErrorKind::Misconfigured, message)).into())
    }

    async fn make_tables(&self, name: &ScratchName, accounts: u32) -> Result<(), Trouble> {
        self.client().await?.batch_execute(&sql::create_schema(name)).await?;
        let inside = self.client_inside(name).await?;
        migrate(&self.inside(name), &TableName::default(), None).await?;
        inside.batch_execute(sql::TABLES).await?;
        let accounts = i32::try_from(accounts).unwrap_or(i32::MAX);
        inside.execute_typed(sql::ADD_ACCOUNTS, &[(&accounts, Type::INT4)]).await?;
        Ok(())
    }

    async fn drop_all(&self, name: &ScratchName) -> Result<(), Trouble> {
        let client = self.client().await?;
        drop_slots(&client, name).await?;
        let of_name = sql::made_for(name);
        for row in client.query_typed(sql::PUBLICATIONS, &[(&of_name, Type::TEXT)]).await? {
            client.batch_execute(&sql::drop_publication(row.try_get(0)?)).await?;
        }
        client.batch_execute(&sql::drop_schema(name)).await?;
        Ok(())
    }
}

/// Drops the slots of a place. A session that reads one belongs to a relay that is gone.
async fn drop_slots(client: &Client, name: &ScratchName) -> Result<(), Trouble> {
    let of_name = sql::made_for(name);
    let deadline = Instant::now() + SLOT_FREE_MAX;
    for row in client.query_typed(sql::SLOTS, &[(&of_name, Type::TEXT)]).await? {
        let slot: String = row.try_get(0)?;
        loop {
            client.query_typed(sql::END_READER, &[(&slot, Type::TEXT)]).await?;
            match client.query_typed(sql::DROP_SLOT, &[(&slot, Type::TEXT)]).await {
                Ok(_) => break,
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => break,
                Err(error) if error.code() != Some(&SqlState::OBJECT_IN_USE) => {
                    return Err(error.into());
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => sleep(SLOT_LOOK_EVERY).await,
            }
        }
    }
    Ok(())
}

fn without_pooler(error: SourceError) -> SourceError {
    error.with_hint(
        "give the URL of the server itself: a pooler neither takes a search_path nor keeps a lock",
    )
}

#[async_trait]
impl ScratchDatabase for PostgresScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the schema {}", name.as_str())
    }

    async fn examine(&self, mode: Mode) -> Result<Examined, SourceError> {
        let examined = async {
            let row = self.client().await?.query_typed_one(sql::EXAMINE, &[]).await?;
            let (database, role): (String, String) = (row.try_get(1)?, row.try_get(2)?);
            let may_make: bool = row.try_get(3)?;
            let may_read_log = mode != Mode::Cdc || row.try_get::<_, bool>(4)?;
            let has_log = mode != Mode::Cdc || row.try_get::<_, String>(5)? == "logical";
            let lacks = [
                (
                    may_make,
                    Missing {
                        what: format!("{role} may not make a schema in {database}"),
                        is_right: true,
                        fix: format!("GRANT CREATE ON DATABASE {database} TO {role}"),
                    },
                ),
                (
                    may_read_log,
                    Missing {
                        what: format!("{role} may not read the server's log"),
                        is_right: true,
                        fix: format!("ALTER ROLE {role} REPLICATION"),
                    },
                ),
                (
                    has_log,
                    Missing {
                        what: "the server's log has too little for mode cdc".to_owned(),
                        is_right: false,
                        fix: "ALTER SYSTEM SET wal_level = logical, and restart the server"
                            .to_owned(),
                    },
                ),
            ];
            let missing = lacks.into_iter().filter(|(has, _)| !has).map(|(_, missing)| missing);
            let missing = missing.collect();
            let version: String = row.try_get(0)?;
            Ok(Examined {
                what: format!("PostgreSQL {version}, database {database}"),
                writers: WRITERS,
                missing,
            })
        };
        examined.await.map_err(|trouble: Trouble| trouble.while_doing("look at the database"))
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SourceError> {
        let listed = async {
            let mut names = Vec::new();
            for row in self.client().await?.query_typed(sql::LIST, &[]).await? {
                names.extend(ScratchName::of(row.try_get(0)?));
            }
            names.sort();
            names.dedup();
            Ok(names)
        };
        listed.await.map_err(|trouble: Trouble| trouble.while_doing("look for what is left"))
    }

    async fn claim(&self, name: &ScratchName) -> Result<Option<Claim>, SourceError> {
        let claimed = async {
            let client = self.client().await?;
            let row = client.query_typed_one(sql::CLAIM, &[(&name.as_str(), Type::TEXT)]).await?;
            Ok(row.try_get::<_, bool>(0)?.then(|| Claim::new(client)))
        };
        claimed.await.map_err(|trouble: Trouble| trouble.while_doing("claim a name"))
    }

    async fn make(&self, name: &ScratchName, accounts: u32) -> Result<(), SourceError> {
        let made = self.make_tables(name, accounts).await;
        made.map_err(|trouble| trouble.while_doing("make the tables to measure with"))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SourceError> {
        let removed = self.drop_all(name).await;
        removed
            .map_err(|trouble| trouble.while_doing(&format!("remove the schema {}", name.as_str())))
    }

    async fn writer(&self, name: &ScratchName) -> Result<Box<dyn ScratchWriter>, SourceError> {
        let connected = async {
            let client = self.client_inside(name).await?;
            let change = client.prepare(sql::CHANGE_BALANCE).await?;
            let note = client.prepare(sql::ADD_TO_LEDGER).await?;
            Ok(PostgresWriter { client, change, note, outbox: Outbox::new() })
        };
        let writer = connected.await;
        Ok(Box::new(writer.map_err(|trouble: Trouble| trouble.while_doing("connect a writer"))?))
    }

    async fn read_all(&self, name: &ScratchName) -> Result<u64, SourceError> {
        let read = async {
            let client = self.client_inside(name).await?;
            let rows = client.copy_out(sql::COPY).await?;
            // The server sends a message for each row.
            Ok(rows.try_fold(0, async |count, _| Ok(count + 1)).await?)
        };
        read.await.map_err(|trouble: Trouble| trouble.while_doing("copy the outbox"))
    }

    async fn source(
        &self,
        name: &ScratchName,
        mode: Mode,
        progress: Progress,
    ) -> Result<Box<dyn Source>, SourceError> {
        let pipeline = name.as_str().to_owned();
        let defaults = PostgresOptions::new(self.inside(name));
        let options = PostgresOptions { pipeline, mode, progress, ..defaults };
        Ok(Box::new(options.connect().await?))
    }

    async fn is_streaming(&self, name: &ScratchName) -> Result<bool, SourceError> {
        let (table, columns) = (TableName::default(), Default::default());
        let slots = PostgresSlots::connect(self.inside(name), table, columns).await?.show().await?;
        let streams = slots.iter().map(|shown| &shown.slot);
        let is_read = streams.filter(|slot| slot.active_pid.is_some());
        Ok(is_read.map(|slot| slot.state).any(|state| state == SlotState::Streams))
    }
}

struct PostgresWriter {
    client: Client,
    change: Statement,
    note: Statement,
    outbox: Outbox,
}

#[async_trait]
impl ScratchWriter for PostgresWriter {
    async fn transact(&mut self, account: u32, events: &[Event]) -> Result<(), SourceError> {
        let doing = "write a transaction";
        let failed = |error| Trouble::Postgres(error).while_doing(doing);
        let account = i32::try_from(account).unwrap_or(i32::MAX);
        let mut transaction = self.client.transaction().await.map_err(failed)?;
        transaction.execute(&self.change, &[&account]).await.map_err(failed)?;
        transaction.execute(&self.note, &[&account]).await.map_err(failed)?;
        if !events.is_empty() {
            let written = self.outbox.publish_all(&mut transaction, events).await;
            written.map_err(|error| {
                let message = format!("cannot {doing}");
                SourceError::new(SourceErrorKind::Unavailable, message).with_source(error)
            })?;
        }
        transaction.commit().await.map_err(failed)
    }
}
