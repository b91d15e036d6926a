//! `postrider dlq show`: one dead letter with its contents, losing none of its bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use postrider_relay::admin::DeadLetterDetail;
use serde::Serialize;
use serde_json::value::RawValue;

use super::list::LetterObject;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::{Output, is_deceptive, plain};
use crate::time::rfc3339;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider dlq show 0197f3c2-5d1e-7000-8000-000000000002 --config postrider.toml
  postrider dlq show 0197f3c2-5d1e-7000-8000-000000000002 --json --config postrider.toml | jq .payload";

/// The arguments of `postrider dlq show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The event's id
    #[arg(value_name = "EVENT_ID")]
    event_id: String,
    #[command(flatten)]
    outbox: OutboxArgs,
}

/// A dead letter as JSON.
#[derive(Serialize)]
pub(crate) struct DetailObject<'l> {
    #[serde(flatten)]
    letter: LetterObject<'l>,
    occurred_at: &'l str,
    content_type: &'l str,
    headers: Contents<'l>,
    /// `json`, `text` or `base64`: how `payload` is written.
    payload_encoding: &'static str,
    payload: Contents<'l>,
}

/// Contents in the most readable form that loses nothing.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Contents<'l> {
    Json(&'l RawValue),
    Text(&'l str),
    Base64(String),
}

impl<'l> Contents<'l> {
    pub(crate) fn new(bytes: &'l [u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::Base64(STANDARD.encode(bytes));
        };
        match serde_json::from_str::<&RawValue>(text) {
            // A raw value keeps every byte but the space around it.
            Ok(json) if json.get().len() == text.len() => Self::Json(json),
            _ => Self::Text(text),
        }
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Text(_) => "text",
            Self::Base64(_) => "base64",
        }
    }
}

/// Shows a dead letter.
pub(crate) async fn run(args: &ShowArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let detail = outbox.admin().await?.dead_letter(&args.event_id).await?;
    let detail = detail.ok_or_else(|| {
        CliError::new(Code::Failure, format!("there is no dead letter {}", args.event_id))
            .with_fix(format!("list them: postrider dlq list {}", outbox.flags))
    })?;
    if output.is_json() {
        return output.object(&to_object(&detail));
    }
    output.data(&to_text(&detail))?;
    let id = plain(&detail.letter.event_id);
    output.talk(&format!(
        "publish it again: postrider dlq retry {id} {flags}\nremove it: postrider dlq discard {id} {flags}",
        flags = outbox.flags
    ));
    Ok(())
}

pub(crate) fn to_object(detail: &DeadLetterDetail) -> DetailObject<'_> {
    let payload = Contents::new(&detail.payload);
    DetailObject {
        letter: LetterObject::new(&detail.letter),
        occurred_at: &detail.occurred_at,
        content_type: &detail.content_type,
        headers: Contents::new(detail.headers.as_bytes()),
        payload_encoding: payload.encoding(),
        payload,
    }
}

fn to_text(detail: &DeadLetterDetail) -> String {
    let letter = &detail.letter;
    let lines = [
        ("event id", plain(&letter.event_id)),
        ("pipeline", plain(&letter.pipeline)),
        ("key", plain(&letter.key.to_string())),
        ("event type", plain(&letter.event_type)),
        ("occurred at", plain(&detail.occurred_at)),
        ("parked at", rfc3339(letter.parked_at)),
        ("attempts", letter.attempts.to_string()),
        ("behind it", letter.queued_behind.to_string()),
        ("error", format!("{}: {}", plain(&letter.kind), plain(&letter.error))),
        ("content type", plain(&detail.content_type)),
        ("headers", plain(&detail.headers)),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        text.push_str(format!("{name:<14}{value}").trim_end());
        text.push('\n');
    }
    let bytes = detail.payload.len();
    // Anything that a terminal could take for a command is shown as base64.
    let is_printable = |c: char| !is_deceptive(c) || c == '\n' || c == '\t';
    match std::str::from_utf8(&detail.payload) {
        Ok(payload) if payload.chars().all(is_printable) => {
            text.push_str(&format!("payload       {bytes} bytes\n\n{payload}"));
        }
        _ => {
            let payload = STANDARD.encode(&detail.payload);
            text.push_str(&format!("payload       {bytes} bytes, as base64\n\n{payload}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use postrider::Key;
    use postrider_relay::admin::DeadLetter;

    use super::*;

    fn detail(headers: &str, payload: &[u8]) -> DeadLetterDetail {
        let letter = DeadLetter {
            cursor: 1,
            pipeline: "orders".into(),
            event_id: "e1".into(),
            key: Key { aggregate_type: "Order".into(), aggregate_id: "42".into() },
            event_type: "OrderPaid".into(),
            kind: "rejected".into(),
            error: "too large".into(),
            attempts: 1,
            parked_at: SystemTime::UNIX_EPOCH,
            queued_behind: 2,
        };
        DeadLetterDetail {
            letter,
            content_type: "application/json".into(),
            headers: headers.into(),
            occurred_at: "2024-01-01T00:00:00Z".into(),
            payload: payload.to_vec(),
        }
    }

    #[test]
    fn json_loses_nothing() {
        for (payload, expected) in [
            (b"{\"n\": 1.00}".as_slice(), r#""payload_encoding":"json","payload":{"n": 1.00}}"#),
            (b" 1", r#""payload_encoding":"text","payload":" 1"}"#),
            (b"{broken", r#""payload_encoding":"text","payload":"{broken"}"#),
            (b"\xff\x00", r#""payload_encoding":"base64","payload":"/wA="}"#),
            (b"", r#""payload_encoding":"text","payload":""}"#),
        ] {
            let json = serde_json::to_string(&to_object(&detail("{}", payload))).unwrap();
            assert!(json.ends_with(expected), "{json}");
            assert!(json.contains(r#""headers":{}"#), "{json}");
        }
    }

    #[test]
    fn text_is_safe_for_a_terminal() {
        let text = to_text(&detail("not \u{1b}json", b"line\n\ttab"));
        assert!(text.contains("headers       not \\u{1b}json\n"), "{text}");
        assert!(text.ends_with("payload       9 bytes\n\nline\n\ttab"), "{text}");
        let turned = to_text(&detail("{}", "a\u{202e}b".as_bytes()));
        assert!(turned.contains("5 bytes, as base64"), "{turned}");
        let text = to_text(&detail("{}", b"\x1b[31m"));
        assert!(text.ends_with("5 bytes, as base64\n\nG1szMW0="), "{text}");
    }
}
