//! Writes rows of PostgreSQL to the archive.

use std::path::PathBuf;

use tokio_postgres::Row;

use super::super::error::Trouble;
use super::Run;
use crate::prune::archive::{ArchiveFile, ArchivedRow};
use crate::source::{SourceError, SourceErrorKind};

/// A file of the archive that is begun when there is something to write.
#[derive(Default)]
pub(in super::super) struct Archive {
    file: Option<ArchiveFile>,
}

impl Archive {
    pub(in super::super) fn is_full(&self) -> bool {
        self.file.as_ref().is_some_and(ArchiveFile::is_full)
    }

    /// Writes rows. Compressing takes a while, so it is done on a thread for such work.
    pub(in super::super) async fn write(
        self,
        run: &Run<'_>,
        rows: &[Row],
    ) -> Result<Self, Trouble> {
        let Some(folder) = run.options.archive.clone() else { return Ok(self) };
        let table = run.pruner.outbox.to_string();
        let rows = rows.iter().map(archived).collect::<Result<Vec<_>, _>>()?;
        let written = blocking(move || {
            let mut file = match self.file {
                Some(file) => file,
                None => ArchiveFile::create(&folder, &table)?,
            };
            file.write(&rows)?;
            Ok(file)
        });
        Ok(Self { file: Some(written.await?) })
    }

    /// Ends the file, if it was begun. When this returns it is on disk.
    pub(in super::super) async fn finish(self) -> Result<Option<PathBuf>, Trouble> {
        match self.file {
            Some(file) => Ok(Some(blocking(move || file.finish()).await?)),
            None => Ok(None),
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, SourceError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|err| {
        let message = "cannot write the archive: it was broken off";
        Err(SourceError::new(SourceErrorKind::Unavailable, message).with_source(err))
    })
}

fn archived(row: &Row) -> Result<ArchivedRow, tokio_postgres::Error> {
    let text =
        |index: usize| row.try_get::<_, Option<String>>(index).map(Option::unwrap_or_default);
    Ok(ArchivedRow {
        seq: row.try_get(0)?,
        id: text(1)?,
        aggregate_type: text(2)?,
        aggregate_id: text(3)?,
        event_type: text(4)?,
        event_version: text(5)?.parse().ok(),
        topic: row.try_get(6)?,
        headers: text(7)?,
        occurred_at: text(8)?,
        content_type: text(9)?,
        payload: row.try_get::<_, Option<Vec<u8>>>(10)?.unwrap_or_default(),
        created_at: row.try_get(11)?,
        published_at: row.try_get(12)?,
    })
}
