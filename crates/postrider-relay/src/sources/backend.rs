//! Which database a URL means, and how each is connected to.

use std::collections::BTreeMap;

use postrider::schema::TableName;

use super::SourceSpec;
#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "sqlite")]
use super::sqlite;
use crate::admin::Admin;
use crate::audit::{Audit, Watch};
use crate::diagnosis::Diagnose;
use crate::operator::Operator;
use crate::prune::Prune;
use crate::scratch::ScratchDatabase;
use crate::shutdown::Shutdown;
use crate::slots::Slots;
use crate::source::{Source, SourceError, SourceErrorKind};
use crate::suggestion::nearest;

/// Why there is no source for a URL. Never says more of the URL than its scheme.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableUrl {
    /// It does not begin with a scheme.
    #[error("the database URL has no scheme; write one such as {}", EXAMPLES.join(" or "))]
    NoScheme,
    /// No database goes by this scheme.
    #[error("no database is known by the scheme {scheme:?}; {}", instead_of(.scheme))]
    Unknown {
        /// The scheme.
        scheme: String,
    },
    /// This build cannot read that database.
    #[error("{database} is not supported by this build; it has {}", EXAMPLES.join(" and "))]
    NotAvailable {
        /// The database.
        database: &'static str,
    },
    /// The URL is not a PostgreSQL one in full.
    #[cfg(feature = "postgres")]
    #[error(transparent)]
    Postgres(#[from] postgres::InvalidLocation),
    /// The URL is not a SQLite one in full.
    #[cfg(feature = "sqlite")]
    #[error(transparent)]
    Sqlite(#[from] sqlite::InvalidLocation),
}

impl From<UnusableUrl> for SourceError {
    fn from(unusable: UnusableUrl) -> Self {
        SourceError::new(SourceErrorKind::Misconfigured, unusable.to_string())
    }
}

/// A URL of each database of this build.
const EXAMPLES: &[&str] = &[
    #[cfg(feature = "postgres")]
    "postgres://user@host/database",
    #[cfg(feature = "sqlite")]
    "sqlite:path/to/app.db",
];

/// What to write instead of a scheme that is not known.
fn instead_of(unknown: &str) -> String {
    let write = format!("write a URL such as {}", EXAMPLES.join(" or "));
    match nearest(unknown, EXAMPLES.iter().filter_map(|example| scheme(example))) {
        Some(near) => format!("did you mean {near}: ? {write}"),
        None => write,
    }
}

/// The databases there are.
#[derive(Debug)]
pub(super) enum Backend {
    #[cfg(feature = "postgres")]
    Postgres(Box<postgres::Location>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Location),
}

#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlite")),
    expect(unused_variables, reason = "this build has no database")
)]
impl Backend {
    /// The database that a URL means.
    pub(super) fn of(url: &str) -> Result<Self, UnusableUrl> {
        let scheme = scheme(url).ok_or(UnusableUrl::NoScheme)?;
        let database = match scheme {
            "dynamodb" => "DynamoDB",
            "mariadb" | "mysql" => "MySQL",
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                return Ok(Self::Postgres(Box::new(postgres::Location::parse(url)?)));
            }
            #[cfg(not(feature = "postgres"))]
            "postgres" | "postgresql" => "PostgreSQL",
            #[cfg(feature = "sqlite")]
            "sqlite" => return Ok(Self::Sqlite(sqlite::Location::parse(url)?)),
            #[cfg(not(feature = "sqlite"))]
            "sqlite" => "SQLite",
            _ => {
                return Err(UnusableUrl::Unknown { scheme: scheme.to_owned() });
            }
        };
        Err(UnusableUrl::NotAvailable { database })
    }

    pub(super) fn problems(self, spec: &SourceSpec) -> Vec<String> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => postgres_options(*location, spec).problems(),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => sqlite_options(location, spec).problems(),
        }
    }

    pub(super) async fn connect(self, spec: &SourceSpec) -> Result<Box<dyn Source>, SourceError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                Ok(Box::new(postgres_options(*location, spec).connect().await?))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => Ok(Box::new(sqlite_options(location, spec).connect().await?)),
        }
    }

    pub(super) async fn connect_admin(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
    ) -> Result<Box<dyn Admin>, SourceError> {
        Ok(self.connect_operator(table, columns).await?)
    }

    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has a log that can be read")
    )]
    pub(super) async fn connect_audit(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
        watch: &Watch,
        shutdown: &Shutdown,
    ) -> Result<Box<dyn Audit>, SourceError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                let (table, columns) = (table.clone(), columns.clone());
                let audit =
                    postgres::PostgresAudit::connect(*location, table, columns, watch, shutdown);
                Ok(Box::new(audit.await?))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {
                let message = "SQLite has no log of its transactions that could be audited";
                Err(SourceError::new(SourceErrorKind::Misconfigured, message).with_hint(
                    "PostgreSQL has: postrider audit --from postgres://user@host/database",
                ))
            }
        }
    }

    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has such tables")
    )]
    pub(super) async fn connect_operator(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
    ) -> Result<Box<dyn Operator>, SourceError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                let (table, columns) = (table.clone(), columns.clone());
                Ok(Box::new(postgres::PostgresAdmin::connect(*location, table, columns).await?))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => {
                Ok(Box::new(sqlite::SqliteAdmin::connect(location, table.clone()).await?))
            }
        }
    }

    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has such tables")
    )]
    pub(super) fn diagnosis(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
    ) -> Box<dyn Diagnose> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                let (table, columns) = (table.clone(), columns.clone());
                Box::new(postgres::PostgresDiagnosis::new(*location, table, columns))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => {
                Box::new(sqlite::SqliteDiagnosis::new(location, table.clone()))
            }
        }
    }

    pub(super) fn scratch(self) -> Box<dyn ScratchDatabase> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => Box::new(postgres::PostgresScratch::new(*location)),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => Box::new(sqlite::SqliteScratch::new(location)),
        }
    }

    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has such tables")
    )]
    pub(super) async fn connect_prune(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
    ) -> Result<Box<dyn Prune>, SourceError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                let (table, columns) = (table.clone(), columns.clone());
                Ok(Box::new(postgres::PostgresPruner::connect(*location, table, columns).await?))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(location) => {
                Ok(Box::new(sqlite::SqlitePruner::connect(location, table.clone()).await?))
            }
        }
    }

    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_variables, reason = "only PostgreSQL has slots")
    )]
    pub(super) async fn connect_slots(
        self,
        table: &TableName,
        columns: &BTreeMap<String, String>,
    ) -> Result<Box<dyn Slots>, SourceError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(location) => {
                let (table, columns) = (table.clone(), columns.clone());
                Ok(Box::new(postgres::PostgresSlots::connect(*location, table, columns).await?))
            }
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => {
                let message = "SQLite has no replication slots";
                Err(SourceError::new(SourceErrorKind::Misconfigured, message)
                    .with_hint("look at what waits: postrider status"))
            }
        }
    }
}

#[cfg(feature = "postgres")]
fn postgres_options(location: postgres::Location, spec: &SourceSpec) -> postgres::PostgresOptions {
    postgres::PostgresOptions {
        table: spec.table.clone(),
        columns: spec.columns.clone(),
        pipeline: spec.pipeline.clone(),
        mode: spec.mode,
        max_retained_wal: spec.max_retained_wal,
        progress: spec.progress,
        start: spec.start,
        companions: spec.companions.clone(),
        ordering: spec.ordering,
        shard: spec.shard,
        matching: Some(spec.aggregate_types.clone()).filter(|types| !types.is_empty()),
        relay: spec.relay.clone(),
        lease: spec.lease,
        hint: spec.hint.clone(),
        ..postgres::PostgresOptions::new(location)
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_options(location: sqlite::Location, spec: &SourceSpec) -> sqlite::SqliteOptions {
    sqlite::SqliteOptions {
        table: spec.table.clone(),
        pipeline: spec.pipeline.clone(),
        progress: spec.progress,
        start: spec.start,
        companions: spec.companions.clone(),
        matching: Some(spec.aggregate_types.clone()).filter(|types| !types.is_empty()),
        hint: spec.hint.clone(),
        ..sqlite::SqliteOptions::new(location)
    }
}

/// The scheme of a URL. What could be part of a password is never taken for one.
pub(super) fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some(scheme)
}
