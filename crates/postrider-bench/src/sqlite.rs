//! SQLite to a file, against the loop of the textbook.
//!
//! The textbook's loop selects the oldest unpublished row, appends it to a file, syncs the file
//! and updates the row. It gets the same database, with the same index, settings and prepared
//! statements, and `published` means the same: on disk. Each measurement starts with its own
//! copy of the database.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use postrider::schema::{TableName, sqlite as schema};
use postrider::{Event, Outbox};
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sinks::file;
use postrider_relay::sources::{Progress, SourceSpec};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tempfile::TempDir;

use crate::Outcome;
use crate::report::{Measured, Report, Section, Target, number};

const EVENTS: u64 = 200_000;
/// The textbook's loop is slow; its rate does not depend on how many events it publishes.
const EVENTS_TEXTBOOK: u64 = 5_000;
const EVENTS_PER_TRANSACTION: u64 = 1_000;
const KEYS: u64 = 10_000;
const PAYLOAD_BYTES: usize = 200;
const RATIO_MIN: f64 = 10.0;

const SELECT_OLDEST: &str = "SELECT seq, id, aggregate_type, aggregate_id, event_type, payload \
     FROM outbox WHERE published_at IS NULL ORDER BY seq LIMIT 1";
const MARK_ONE: &str = "UPDATE outbox SET published_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
     WHERE seq = ?1";
/// What the source sets as well.
const SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
     PRAGMA cache_size = -16384";

/// Runs the measurements. True if every target was reached.
pub(crate) fn run() -> Outcome<bool> {
    let mut report = Report::new(Section::Sqlite);
    report.title(&format!(
        "sqlite to file: {PAYLOAD_BYTES}-byte payloads, {} keys, ordered by key, every line synced",
        number(KEYS as f64)
    ));
    let place = Place::new()?;
    let textbook = textbook_loop(&place)?;
    report.rate("the textbook's loop", textbook);
    let mut rates = Vec::new();
    for progress in [Progress::Mark, Progress::Delete, Progress::Cursor] {
        let drained = drain(&place, progress)?;
        report.rate(&format!("postrider, progress = {progress}"), drained);
        rates.push((progress, drained.rate()));
    }
    for (progress, rate) in rates {
        let what = format!("{progress}, of the textbook's rate");
        report.judge(&what, rate / textbook.rate(), "times", Target::AtLeast(RATIO_MIN));
    }
    report.keep(None)
}

/// A folder with a full outbox.
struct Place {
    folder: TempDir,
    template: PathBuf,
}

impl Place {
    fn new() -> Outcome<Self> {
        let folder = crate::beside_program()?;
        let template = folder.path().join("template.db");
        fill(&template)?;
        Ok(Self { folder, template })
    }

    /// A copy of the database, and where to publish to.
    fn copy(&self, name: &str) -> Outcome<(PathBuf, PathBuf)> {
        let database = self.folder.path().join(format!("{name}.db"));
        fs::copy(&self.template, &database)?;
        File::open(&database)?.sync_all()?;
        Ok((database, self.folder.path().join(format!("{name}.jsonl"))))
    }
}

/// Writes the events that everyone is to publish.
fn fill(path: &Path) -> Outcome<()> {
    let mut database = Connection::open(path)?;
    database.execute_batch(SETTINGS)?;
    schema::migrate(&mut database, &TableName::default())?;
    let outbox = Outbox::new();
    let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2));
    for first in (0..EVENTS).step_by(EVENTS_PER_TRANSACTION as usize) {
        let mut transaction = database.transaction()?;
        for number in first..EVENTS.min(first + EVENTS_PER_TRANSACTION) {
            let key = (number % KEYS).to_string();
            let event = Event::builder("Order", key, "OrderPlaced")
                .payload(payload.clone(), postrider::event::CONTENT_TYPE_JSON)
                .build()?;
            outbox.publish(&mut transaction, &event)?;
        }
        transaction.commit()?;
    }
    // One file, so that it can be copied.
    database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode = DELETE")?;
    Ok(())
}

fn drain(place: &Place, progress: Progress) -> Outcome<Measured> {
    let (database, published) = place.copy(progress.as_str())?;
    // As the binary has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let started = Instant::now();
    let totals = runtime.block_on(async {
        let spec =
            SourceSpec { progress, ..SourceSpec::new(format!("sqlite:{}", database.display())) };
        let source = spec.connect().await?;
        let sink = file::Options { path: published.clone() }.connect().await?;
        let options = Options { drain: true, ..Options::default() };
        let (_stop, shutdown) = shutdown();
        let pipeline = Pipeline::new("bench", source, Box::new(sink), options);
        Outcome::Ok(pipeline.run(shutdown).await?)
    })?;
    let measured = Measured { events: EVENTS, time: started.elapsed() };
    check(totals.delivered, EVENTS)?;
    check(lines(&published)?, EVENTS)?;
    Ok(measured)
}

/// A row as the textbook's loop sees it.
struct Oldest {
    seq: i64,
    line: String,
}

impl Oldest {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
        let (id, event_type) = (text(1)?, text(4)?);
        let (aggregate_type, aggregate_id) = (text(2)?, text(3)?);
        let payload = String::from_utf8_lossy(row.get_ref(5)?.as_blob()?);
        let line = format!(
            "{{\"id\":\"{id}\",\"aggregate_type\":\"{aggregate_type}\",\
             \"aggregate_id\":\"{aggregate_id}\",\"event_type\":\"{event_type}\",\
             \"payload\":{payload}}}\n"
        );
        Ok(Self { seq: row.get(0)?, line })
    }
}

fn textbook_loop(place: &Place) -> Outcome<Measured> {
    let (database, published) = place.copy("textbook")?;
    let started = Instant::now();
    let database = Connection::open(database)?;
    database.execute_batch(SETTINGS)?;
    let mut select_oldest = database.prepare(SELECT_OLDEST)?;
    let mut mark_one = database.prepare(MARK_ONE)?;
    let mut file = OpenOptions::new().create(true).append(true).open(&published)?;
    for _ in 0..EVENTS_TEXTBOOK {
        let Some(oldest) = select_oldest.query_row([], Oldest::of).optional()? else { break };
        file.write_all(oldest.line.as_bytes())?;
        file.sync_data()?;
        mark_one.execute(params![oldest.seq])?;
    }
    let measured = Measured { events: EVENTS_TEXTBOOK, time: started.elapsed() };
    check(lines(&published)?, EVENTS_TEXTBOOK)?;
    Ok(measured)
}

fn lines(path: &Path) -> Outcome<u64> {
    let mut count = 0;
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        line?;
        count += 1;
    }
    Ok(count)
}

fn check(published: u64, events: u64) -> Outcome<()> {
    if published == events {
        return Ok(());
    }
    Err(format!("{published} of {events} events were published").into())
}
