//! The only place that prints: data on stdout, talk on stderr.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

pub(crate) use postrider_relay::amounts::size;

use crate::cli::LogFormat;
use crate::error::{CliError, Code, ErrorObject};
use crate::progress;

/// Where a command's words go, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    error_json: bool,
}

impl Output {
    /// Errors are JSON with the data, and also where the log is: they stand on stderr together.
    pub(crate) fn new(json: bool, log_format: LogFormat) -> Self {
        Self { json, error_json: json || log_format == LogFormat::Json }
    }

    /// Whether data is to be JSON.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints text as data.
    pub(crate) fn data(self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes())
    }

    /// Prints bytes as data, with a line end if they have none.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Result<(), CliError> {
        self.is_read(bytes).map(drop)
    }

    /// The same; answers whether somebody still reads.
    pub(crate) fn is_read(self, bytes: &[u8]) -> Result<bool, CliError> {
        progress::erase();
        let mut stdout = io::stdout().lock();
        let end: &[u8] = if bytes.ends_with(b"\n") { b"" } else { b"\n" };
        let written = stdout
            .write_all(bytes)
            .and_then(|()| stdout.write_all(end))
            .and_then(|()| stdout.flush());
        match written {
            // Whoever reads has seen enough, as `head` does.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(CliError::file("cannot write to stdout".into(), &error)),
            Ok(()) => Ok(true),
        }
    }

    /// Prints one JSON object as data.
    pub(crate) fn object(self, object: &impl Serialize) -> Result<(), CliError> {
        self.data(&to_json(object)?)
    }

    /// Tells the user something, unless they asked for JSON.
    pub(crate) fn talk(self, text: &str) {
        if !self.json {
            eprint_line(text);
        }
    }

    /// Tells the user what went wrong.
    pub(crate) fn error(self, error: &CliError) {
        if self.error_json {
            return self.error_object(&error.to_object());
        }
        let mut text = format!("error: {}", error.what);
        for why in &error.why {
            text.push_str(&format!("\n  why: {}", indent(why)));
        }
        for problem in error.problems.iter().flat_map(|problems| problems.iter()) {
            text.push_str(&format!("\n\n{problem}"));
        }
        if let Some(fix) = &error.fix {
            text.push_str(&format!("\n  fix: {}", indent(fix)));
        }
        text.push_str(&format!("\n  more: postrider explain {}", error.code.as_str()));
        eprint_line(&text);
    }

    /// The same as JSON.
    pub(crate) fn error_object(self, error: &ErrorObject<'_>) {
        if let Ok(json) = to_json(error) {
            eprint_line(&json);
        }
    }

    /// Asks on the terminal whether to go on. Without a terminal nobody can answer: that is an
    /// error with what to do instead.
    pub(crate) fn confirm(self, question: &str, instead: &str) -> Result<(), CliError> {
        if !io::stdin().is_terminal() {
            let error = CliError::new(Code::Usage, format!("{question} nobody can be asked here"));
            return Err(error.with_fix(instead));
        }
        progress::erase();
        let mut stderr = io::stderr().lock();
        let mut answer = String::new();
        let asked = write!(stderr, "{} [y/N] ", plain(question))
            .and_then(|()| stderr.flush())
            .and_then(|()| io::stdin().read_line(&mut answer));
        asked.map_err(|error| CliError::file("cannot ask on the terminal".into(), &error))?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(CliError::new(Code::Failure, "nothing was changed")),
        }
    }
}

/// An object as JSON, fit for a terminal.
pub(crate) fn to_json(object: &impl Serialize) -> Result<String, CliError> {
    let json = serde_json::to_string(object)
        .map_err(|error| CliError::new(Code::Failure, "cannot write JSON").caused_by(&error))?;
    Ok(plain_json(&json))
}

/// The same JSON, fit for a terminal: what is deceptive can stand only inside its strings, and is
/// written as an escape of JSON there.
pub(crate) fn plain_json(json: &str) -> String {
    // A payload that is JSON stands there as it is, with the white space between its parts.
    let is_bad = |c: char| is_deceptive(c) && !c.is_ascii_whitespace();
    escaped(json, is_bad, |c, text| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// Nothing can be done about a stderr that is gone.
fn eprint_line(text: &str) {
    progress::erase();
    // What a server or a file said may be anywhere in it. Its lines are ours.
    let is_ours = |c: char| c == '\n' || c == '\t';
    let text = escaped(text, |c| is_deceptive(c) && !is_ours(c), escape);
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Keeps further lines under the first.
fn indent(text: &str) -> String {
    text.replace('\n', "\n       ")
}

/// Text from a database, safe for a terminal and on one line: control characters, and those that
/// are not seen or turn the direction of others, are written as escapes.
pub(crate) fn plain(text: &str) -> String {
    escaped(text, is_deceptive, escape)
}

fn escape(c: char, text: &mut String) {
    text.extend(c.escape_default());
}

fn escaped(
    text: &str,
    is_bad: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> String {
    if !text.chars().any(&is_bad) {
        return text.to_owned();
    }
    let mut written = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_bad(c) {
            true => escape(c, &mut written),
            false => written.push(c),
        }
    }
    written
}

/// Whether a character makes a terminal do something, or a reader see something else than there is:
/// control characters, ends of lines, marks of direction, and what is invisible but for the joiners
/// that some scripts need.
pub(crate) fn is_deceptive(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}')
}

/// Lines up columns; the first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["NAME", "COUNT"], ["orders", "1"], ["é", "20"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "NAME    COUNT\norders  1\né       20\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(plain("Größe"), "Größe");
    }

    #[test]
    fn what_turns_or_hides_text_does_not_reach_the_terminal() {
        assert_eq!(plain("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(plain("\u{2066}x\u{2069}\u{2028}"), "\\u{2066}x\\u{2069}\\u{2028}");
        assert_eq!(plain("\u{9b}31m\u{7f}\u{200b}"), "\\u{9b}31m\\u{7f}\\u{200b}");
        // Letters of every direction, and what joins them.
        for text in
            ["\u{5e9}\u{5dc}\u{5d5}\u{5dd}", "\u{915}\u{94d}\u{200d}", "\u{1f468}\u{200d}\u{1f469}"]
        {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn json_stays_the_same_json_without_what_deceives() {
        let text = "\u{202e}\u{9b}\u{e0041} \u{e9}\n";
        let json = to_json(&text).unwrap();
        assert_eq!(json, "\"\\u202e\\u009b\\udb40\\udc41 \u{e9}\\n\"");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        let raw = serde_json::value::RawValue::from_string("{\n\"a\":\"\u{202e}\"}".to_owned());
        assert_eq!(to_json(&raw.unwrap()).unwrap(), "{\n\"a\":\"\\u202e\"}");
    }
}
