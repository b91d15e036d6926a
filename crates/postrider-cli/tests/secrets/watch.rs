//! Runs commands and listens to all that they say.

use std::process::{Command, Stdio};

use crate::canary::{CONTENTS, SECRET, found};
use crate::support::http::{address, get};
use crate::support::otlp::Collector;
use crate::support::{Fixture, Ran, Running};

/// A folder in which commands run, and a collector for what they export.
pub(crate) struct Watch {
    pub(crate) fixture: Fixture,
    collector: Collector,
}

impl Watch {
    pub(crate) fn new(fixture: Fixture) -> Self {
        Self { fixture, collector: Collector::start() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.fixture.command(args);
        command.env("POSTRIDER_LOG", "trace").env("RUST_BACKTRACE", "full");
        command.env("PLANTED", SECRET);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", self.collector.endpoint());
        command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("api-key={SECRET}"));
        command.env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", self.traces_endpoint());
        command
    }

    fn traces_endpoint(&self) -> String {
        format!("{}/v1/traces?token={SECRET}", self.collector.endpoint())
    }

    /// Runs a command, as text and as JSON, and searches what it says. It must be understood.
    /// Gives back the first.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let ran = self.run_once(args);
        assert!(!ran.stderr.contains("Usage: "), "postrider {args:?}\n{}", ran.stderr);
        self.run_once(&[args, &["--json", "--log-format", "json"]].concat());
        ran
    }

    #[track_caller]
    pub(crate) fn run_once(&self, args: &[&str]) -> Ran {
        let ran = Ran::new(args, self.command(args).output().unwrap());
        assert_silent(args, &ran);
        ran
    }

    /// Starts a relay.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running::new(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Looks at the pages of a relay once its log has a text, and stops it.
    #[track_caller]
    pub(crate) fn look_and_stop(&self, mut relay: Running, text: &str) {
        let pages = address(&relay);
        relay.wait_for(text);
        for page in ["/metrics", "/livez", "/readyz"] {
            assert_nothing(page, get(pages, page).body.as_bytes());
        }
        relay.signal("TERM");
        relay.wait();
        assert_nothing("relay", relay.stderr().as_bytes());
    }

    /// Searches what was exported; there must be something.
    #[track_caller]
    pub(crate) fn search_exports(&self) {
        let taken = self.collector.taken();
        assert!(taken.heads.contains(SECRET), "the collector is who may know");
        assert!(!taken.spans.is_empty() && !taken.logs.is_empty(), "nothing was exported");
        assert_nothing("the export", &taken.bytes);
    }
}

/// Whether a command prints the contents of events, because that is what it is asked for. There
/// are no others.
pub(crate) fn shows_contents(args: &[&str]) -> bool {
    args.starts_with(&["dlq", "show"])
        || args.starts_with(&["dlq", "export"])
        || args.contains(&"--payload")
        || args.windows(2).any(|two| two == ["--to", "stdout:"])
}

#[track_caller]
fn assert_silent(args: &[&str], ran: &Ran) {
    let what = format!("postrider {}", args.join(" "));
    assert_nothing(&format!("stderr of {what}"), ran.stderr.as_bytes());
    let (what, stdout) = (format!("stdout of {what}"), ran.stdout.as_bytes());
    if shows_contents(args) {
        assert_eq!(found(stdout, SECRET), None, "{what}");
    } else {
        assert_nothing(&what, stdout);
    }
}

/// Neither a secret nor contents.
#[track_caller]
pub(crate) fn assert_nothing(what: &str, text: &[u8]) {
    for canary in [SECRET, CONTENTS] {
        assert_eq!(found(text, canary), None, "{what}");
    }
}
