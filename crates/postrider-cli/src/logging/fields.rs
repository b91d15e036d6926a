//! The fields of a line of the log, each `name=value`.
//!
//! Values come from events, servers and files. One that has a space, a quote or a character that a
//! terminal acts upon is quoted and escaped, so that no value can look like another field or
//! another line.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use crate::output::{is_deceptive, plain};

/// The name of the field with the words of an entry.
const MESSAGE: &str = "message";

/// Writes fields.
#[derive(Debug)]
pub(super) struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = FieldWriter { writer, is_first: true, written: Ok(()) };
        fields.record(&mut visitor);
        visitor.written
    }
}

struct FieldWriter<'w> {
    writer: Writer<'w>,
    is_first: bool,
    written: fmt::Result,
}

impl FieldWriter<'_> {
    fn write(&mut self, field: &Field, value: &str) {
        if self.written.is_err() {
            return;
        }
        let gap = if self.is_first { "" } else { " " };
        self.is_first = false;
        self.written = match field.name() {
            MESSAGE => write!(self.writer, "{gap}{}", plain(value)),
            name => write!(self.writer, "{gap}{}={value}", name.trim_start_matches("r#")),
        };
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            MESSAGE => self.write(field, value),
            _ => self.write(field, &quoted(value)),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            MESSAGE => self.write(field, &text),
            _ if is_word(&text) || is_quoted(&text) => self.write(field, &text),
            _ => self.write(field, &quoted(&text)),
        }
    }
}

/// Whether a value can stand without quotes.
fn is_word(text: &str) -> bool {
    let is_bare = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    !text.is_empty() && text.chars().all(is_bare)
}

/// Whether a value is quoted already, as the debug form of a text is.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.is_some_and(|inner| {
        let mut is_escaped = false;
        let ends_early = inner.chars().any(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends || is_deceptive(c)
        });
        !ends_early && !is_escaped
    })
}

fn quoted(text: &str) -> String {
    // Debug escapes quotes and control characters, and most of what is not seen.
    plain(&format!("{text:?}"))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(log: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .fmt_fields(Fields)
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn no_value_looks_like_another_field_or_line() {
        let text = logged(|| {
            let error = "x\nERROR id=7 pwned\u{1b}[2J";
            let id = "a\u{202e}b";
            tracing::warn!(%error, id, key = %"a \"b\"", count = 3, bare = %"a-b", "said\n{error}");
        });
        assert_eq!(
            text,
            " WARN said\\nx\\nERROR id=7 pwned\\u{1b}[2J error=\"x\\nERROR id=7 pwned\\u{1b}[2J\" \
             id=\"a\\u{202e}b\" key=\"a \\\"b\\\"\" count=3 bare=a-b\n"
        );
    }

    #[test]
    fn what_is_quoted_already_is_not_quoted_again() {
        let text = logged(|| {
            tracing::info!(kind = ?"a b", forged = %"\"a\" id=\"7\"", open = %"\"a\\\"", "said");
        });
        let expected = r#" INFO said kind="a b" forged="\"a\" id=\"7\"" open="\"a\\\"""#;
        assert_eq!(text.trim_end(), expected);
    }

    #[test]
    fn fields_of_spans_are_quoted_as_well() {
        let text = logged(|| {
            let span = tracing::info_span!("call", key = %"a b\n");
            span.in_scope(|| tracing::info!("sent"));
        });
        assert_eq!(text, " INFO call{key=\"a b\\n\"}: sent\n");
    }
}
