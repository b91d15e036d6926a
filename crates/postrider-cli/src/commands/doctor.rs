//! `postrider doctor`: finds what is wrong, and says how to mend it.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use postrider::Event;
use postrider_relay::config::{Config, Flags, SourceConfig, parse_duration};
use postrider_relay::diagnosis::{self, Asked, Diagnose, Finding, Fix, Level, OPEN_FOR_DEFAULT};
use postrider_relay::events::{Stored, Wanted};

use self::report::Report;
use crate::error::{CliError, Code};
use crate::outbox::{self, Outbox};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider doctor --config postrider.toml
  postrider doctor --from postgres://shop@localhost/shop --to kafka://localhost:9092
  postrider doctor --from postgres://shop@localhost/shop --writer shop_app --json
  postrider doctor --config postrider.toml --fix

Every check is OK, WARN (it works, and could be safer), FAIL (events are late or lost, or will be) or
SKIP (it could not be made), with what was found and what mends it. Nothing is changed without
--fix, which applies migrations, makes indexes and completes a publication, and nothing else.

The exit code is 0 if no check failed, whatever the warnings, and 6 if one did.
docs/guides/doctor.md explains each check.";

/// The arguments of `postrider doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "table"])]
    config: Option<PathBuf>,
    /// The database with the outbox, such as postgres://user@host/database or sqlite:app.db [env:
    /// POSTRIDER_SOURCE__URL]
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Where events go: look at that as well
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// The outbox table [default: outbox]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// The role that writes events, to look at its rights (PostgreSQL) [default: postrider_writer, if
    /// there is one]
    #[arg(long, value_name = "ROLE")]
    writer: Option<String>,
    /// Report transactions that are open for longer [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    open_for: Option<Duration>,
    /// Mend what can be mended safely while relays run
    #[arg(long)]
    fix: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 30s, 5m or 1h".to_owned())
}

/// What is to be looked at.
struct Patient {
    outbox: Outbox,
    config: Option<Config>,
    asked: Asked,
}

/// Makes every check, and fails if one did.
pub(crate) async fn run(args: &DoctorArgs, output: Output) -> Result<(), CliError> {
    let mut findings = Vec::new();
    let patient = match &args.config {
        None => Some(by_flags(args)?),
        Some(path) => by_file(path, &mut findings)?,
    };
    let mut report = Report::default();
    if let Some(mut patient) = patient {
        patient.asked.writer = args.writer.clone();
        patient.asked.open_for = args.open_for.unwrap_or(OPEN_FOR_DEFAULT);
        let database = patient.outbox.diagnosis()?;
        let mut found = database.findings(&patient.asked).await;
        if args.fix {
            report.mended = mend(database.as_ref(), &found, output).await;
            if !report.mended.is_empty() {
                found = database.findings(&patient.asked).await;
            }
        }
        findings.extend(found);
        if let Some(config) = &patient.config {
            let newest = newest(&patient.outbox).await;
            findings.extend(diagnosis::sinks(&config.pipelines, &newest).await);
        }
    }
    report.findings = findings;
    report.print(output)?;
    let failed = report.count(Level::Fail);
    if failed == 0 {
        return Ok(());
    }
    let checks = report.findings.len();
    let what = format!("{failed} of {checks} checks failed");
    let can_mend = report
        .findings
        .iter()
        .any(|finding| finding.fix.as_ref().is_some_and(|fix| fix.remedy.is_some()));
    let fix = match can_mend && !args.fix {
        true => "do what it says beside them; --fix does what is safe of it",
        false => "do what it says beside them",
    };
    Err(CliError::new(Code::ChecksFailed, what).with_fix(fix))
}

/// The newest events: topics are made of them. None if the outbox cannot be read, which is another
/// finding.
async fn newest(outbox: &Outbox) -> Vec<Arc<Event>> {
    let read = async {
        let operator = outbox.operator().await?;
        let newest = operator.newest(&Wanted::default(), diagnosis::TOPIC_EVENTS).await?;
        let stored = newest.events.into_iter().map(|event| Stored {
            position: event.position,
            event_id: event.event_id,
            payload_bytes: event.payload_bytes,
            created_at: event.created_at,
        });
        Ok::<_, CliError>(operator.read(&stored.collect::<Vec<_>>()).await?)
    };
    let read = read.await.unwrap_or_default();
    read.into_iter().filter_map(|read| read.event.ok()).collect()
}

/// What flags name.
fn by_flags(args: &DoctorArgs) -> Result<Patient, CliError> {
    let (from, to, table) = (args.from.clone(), args.to.clone(), args.table.clone());
    let flags = Flags { from, to, table, ..Flags::default() };
    let env = outbox::environment(&flags)?;
    let (source, config) = match &args.to {
        None => (SourceConfig::from_flags(&flags, &env).map_err(CliError::problems)?, None),
        Some(_) => {
            let config = Config::from_flags(&flags, &env).map_err(CliError::problems)?;
            (config.source.clone(), Some(config))
        }
    };
    let flags = outbox::from_flags(&source);
    let asked = Asked::new(flags.clone());
    Ok(Patient { outbox: Outbox { source, flags }, config, asked })
}

/// What a file describes, after the checks of the file itself; `None` if it has mistakes, which
/// are findings.
fn by_file(path: &Path, findings: &mut Vec<Finding>) -> Result<Option<Patient>, CliError> {
    const CHECK: &str = "config";
    let shown = path.display().to_string();
    let read = outbox::read_config(path);
    let text = outbox::read_text(path).unwrap_or_default();
    let about_file =
        || std::iter::once(diagnosis::exposure(path, &text)).chain(diagnosis::secrets(&text));
    let config = match read {
        Ok(config) => config,
        Err(CliError { problems: Some(problems), .. }) => {
            findings.extend(problems.iter().map(|problem| {
                let found = format!("{}: {}", problem.at, problem.what);
                Finding::fail(CHECK, found).with(Fix::advice(problem.fix.clone()))
            }));
            findings.extend(about_file());
            let found = "the database and the sinks are known once the configuration is right";
            findings.push(Finding::skip("database", found));
            return Ok(None);
        }
        // There is no file that could be looked at.
        Err(error) => return Err(error),
    };
    findings.push(Finding::ok(CHECK, format!("{shown} has no mistakes")));
    findings.extend(about_file());
    findings.extend(diagnosis::configuration(&config));
    let flags = outbox::config_flag(path);
    let asked = Asked::by(flags.clone(), &config);
    let outbox = Outbox { source: config.source.clone(), flags };
    Ok(Some(Patient { outbox, config: Some(config), asked }))
}

/// Does what is safe about the findings, and answers what was done.
async fn mend(database: &dyn Diagnose, found: &[Finding], output: Output) -> Vec<String> {
    let mut mended = Vec::new();
    let fixes = found.iter().filter(|finding| finding.level > Level::Skip);
    for fix in fixes.filter_map(|finding| finding.fix.as_ref()).filter(|fix| fix.remedy.is_some()) {
        match database.mend(fix).await {
            Ok(()) => {
                output.talk(&format!("mended: {}", fix.text));
                mended.push(fix.text.clone());
            }
            // The next look finds it again.
            Err(error) => output.talk(&format!("not mended: {}: {}", fix.text, error.details())),
        }
    }
    mended
}
