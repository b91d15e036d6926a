//! What is planted, and how it is found again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// Part of every secret. It is never shown.
pub(crate) const SECRET: &str = "c4n4ry0fasecret";
/// Part of every payload and of every value of a header. It is shown on request.
pub(crate) const CONTENTS: &str = "c4n4ry0fcontents";

/// The headers of an event.
pub(crate) fn headers() -> String {
    format!(r#"{{"x-person": "{CONTENTS}", "authorization": "Bearer {CONTENTS}"}}"#)
}

/// A payload; an endpoint answers with `status`, if it looks at that.
pub(crate) fn payload(status: u16) -> String {
    format!(r#"{{"card": "{CONTENTS}", "answer": {status}}}"#)
}

/// What is wrong with a text in which a canary must not be.
pub(crate) fn found(text: &[u8], canary: &str) -> Option<String> {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let form = forms(canary).into_iter().find(|form| text.contains(form.as_str()))?;
    let at = text.find(&form)?;
    let (start, end) = (at.saturating_sub(200), (at + form.len() + 100).min(text.len()));
    let around = String::from_utf8_lossy(&text.as_bytes()[start..end]).into_owned();
    Some(format!("{canary} is there as {form}: …{around}…"))
}

/// A canary as text, as the bytes that `Debug` prints, in hexadecimal digits and in base64,
/// wherever it begins there. All in lower case, as what is searched.
fn forms(canary: &str) -> Vec<String> {
    let bytes = canary.as_bytes();
    let decimal: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    let hexadecimal = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![canary.to_owned(), decimal.join(", "), hexadecimal];
    for before in 0..3 {
        let encoded = STANDARD_NO_PAD.encode([&vec![0; before], bytes].concat());
        // What depends on the bytes around it is left out.
        let (start, end) = ((before * 8).div_ceil(6), (before + bytes.len()) * 8 / 6);
        forms.push(encoded[start..end].to_lowercase());
    }
    forms
}

#[test]
fn a_canary_is_found_in_every_form() {
    let basic = |text: &str| STANDARD_NO_PAD.encode(text);
    for text in [
        format!("postgres://relay:{SECRET}@host"),
        SECRET.to_uppercase(),
        format!("{:?}", SECRET.as_bytes()),
        SECRET.bytes().map(|byte| format!("{byte:02X}")).collect(),
        basic(&format!(":{SECRET}")),
        basic(&format!("u:{SECRET}!")),
        basic(&format!("us:{SECRET}!!")),
    ] {
        assert!(found(text.as_bytes(), SECRET).is_some(), "{text}");
        assert!(found(text.as_bytes(), CONTENTS).is_none(), "{text}");
    }
}
