//! Reads `[http]`.

use super::HttpConfig;
use super::section::{Given, Section};
use crate::secret::Secret;

/// The shortest token that is not guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// What an address looks like.
const EXAMPLE: &str = "127.0.0.1:8787";

/// Reads the section, if there is one. A mistake in it is reported.
pub(super) fn read(root: &Section<'_>) -> Option<HttpConfig> {
    let section = root.section("http", "[http]".into())?;
    let listen = section.required_string("listen", EXAMPLE);
    let token = section.string("token");
    let hosts = section.strings("hosts").unwrap_or_default();
    section.finish();
    let token = match token {
        Some(Given { value, origin }) if value.value.len() < TOKEN_BYTES_MIN => {
            let what = format!("`token` has fewer than {TOKEN_BYTES_MIN} characters");
            root.report.add(&origin, what, "make one: openssl rand -base64 24");
            return None;
        }
        given => given.map(|given| Secret::new(given.value.value)),
    };
    let Given { value: text, origin } = listen?;
    match text.value.parse() {
        Ok(listen) => Some(HttpConfig { listen, token, hosts }),
        Err(_) => {
            let what = format!("`listen` cannot be \"{}\"", text.written);
            let fix = format!("write an IP address of this host and a port: \"{EXAMPLE}\"");
            root.report.add(&origin, what, fix);
            None
        }
    }
}
