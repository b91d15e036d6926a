//! `postrider audit`: watches business tables, and finds transactions that forgot their event.

mod tables;
mod view;

use std::time::Duration;

use clap::Args;
use postrider_relay::audit::{self, Audit, FindingKind, Report, Rules, Watch, Watched};
use postrider_relay::config::parse_duration;
use postrider_relay::shutdown::Shutdown;

use self::tables::{Tables, parse_tables};
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::{Output, plain, to_json};
use crate::signals::stop_on_signal;
use crate::time::age;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider audit --from postgres://shop@localhost/shop --tables orders,payments --for 10m
  postrider audit --config postrider.toml --tables orders,sales.invoices:insert+delete --json

Reports transactions that changed these tables and wrote no event, and transactions that wrote
events and changed none of them: other tables are not seen. It reads the server's log, for which
wal_level is logical and the role has REPLICATION and owns the tables, or is given a --publication.
Nothing stays behind in the database. Exit code 0: nothing was found; 7: something was.";

/// After so long the operator hears what it waits for.
const WAIT_TOLD_AFTER: Duration = Duration::from_secs(2);

/// The arguments of `postrider audit`.
#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// The tables to watch, as the database has them: orders,sales.invoices. With :insert+delete
    /// behind a table, only these operations need an event
    #[arg(long, value_name = "TABLES", required = true, value_parser = parse_tables)]
    tables: Vec<Tables>,
    /// How long to watch, such as 10m [default: until it is interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// Do not report events whose transaction changed none of the tables
    #[arg(long)]
    allow_event_only: bool,
    /// Publications that are there already and have the tables and the outbox [default: make some
    /// and remove them at the end]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    publication: Vec<String>,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 30s or 10m".to_owned())
}

/// Watches, and reports.
pub(crate) async fn run(args: &AuditArgs, output: Output) -> Result<(), CliError> {
    let outbox = find(&args.outbox)?;
    let watch = Watch {
        tables: args.tables.iter().flat_map(|tables| tables.0.clone()).collect(),
        publications: args.publication.clone(),
    };
    let mut shutdown = stop_on_signal()?;
    let mut audit = begin(&outbox, &watch, &shutdown, output).await?;
    let watched = audit.watched().clone();
    if output.is_json()
        && let Err(error) = output.object(&view::watching(&watched))
    {
        // Whether that works or not, the first error is the one to tell.
        let _ = audit.close().await;
        return Err(error);
    }
    output.talk(&begun(&watched, args.time));
    for note in &watched.notes {
        output.talk(&format!("note: {note}"));
    }
    let rules = Rules { allow_event_only: args.allow_event_only };
    let mut printed = Ok(true);
    let (report, ended) =
        audit::run(&mut *audit, rules, args.time, &mut shutdown, |finding, is_first| {
            if output.is_json() {
                let line = to_json(&view::finding(finding, &watched));
                printed = line.and_then(|line| output.is_read(line.as_bytes()));
            } else if is_first {
                output.talk(&view::told(finding, &watched));
            }
            matches!(printed, Ok(true))
        })
        .await;
    let closed = audit.close().await;
    printed?;
    match output.is_json() {
        true => output.object(&view::summary(&report))?,
        false => output.data(&view::text(&report))?,
    }
    if let Err(error) = closed {
        output.talk(&error.details());
    }
    ended.map_err(|error| {
        let error = CliError::from(error);
        let what = format!("the audit has ended early: {}", error.what);
        CliError { what, ..error }
    })?;
    verdict(&report)
}

/// The outbox, or what can be audited instead of such a database.
fn find(args: &OutboxArgs) -> Result<Outbox, CliError> {
    let scheme = args.from.as_deref().and_then(|url| url.split(':').next());
    if matches!(scheme, Some("mariadb" | "mysql")) {
        let error = CliError::new(Code::Configuration, "MySQL cannot be audited");
        return Err(error.with_fix("audit PostgreSQL: --from postgres://user@host/database"));
    }
    Outbox::find(args)
}

/// Begins, and says what it waits for if that takes a while.
async fn begin(
    outbox: &Outbox,
    watch: &Watch,
    shutdown: &Shutdown,
    output: Output,
) -> Result<Box<dyn Audit>, CliError> {
    let mut beginning = std::pin::pin!(outbox.audit(watch, shutdown));
    tokio::select! {
        begun = &mut beginning => return begun,
        () = tokio::time::sleep(WAIT_TOLD_AFTER) => output.talk(
            "waiting for transactions that are open: the log is read from where they have ended; \
             SELECT pid, xact_start, application_name FROM pg_stat_activity WHERE backend_xid IS \
             NOT NULL ORDER BY xact_start"
        ),
    }
    beginning.await
}

fn begun(watched: &Watched, time: Option<Duration>) -> String {
    let tables: Vec<String> = watched.tables.iter().map(|table| plain(&table.name)).collect();
    let until = match time {
        Some(time) => format!("for {}", age(time)),
        None => "until it is interrupted".to_owned(),
    };
    let (tables, outbox) = (tables.join(", "), plain(&watched.outbox));
    format!("watching {tables} and the events of {outbox} since {}, {until}", watched.since_lsn)
}

fn verdict(report: &Report) -> Result<(), CliError> {
    if report.is_clean() {
        return Ok(());
    }
    let counts =
        [(report.no_event, FindingKind::NoEvent), (report.event_only, FindingKind::EventOnly)];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let what: Vec<String> = counts.map(|(count, kind)| view::headline(count, kind)).collect();
    Err(CliError::new(Code::Partial, what.join("; ")).with_fix(
        "write the event in the transaction of the change. To find the writer, have the server log \
         with log_statement = 'mod' and %x, %a and %u in log_line_prefix: %x is the transaction",
    ))
}
