//! Reads `[http]`.

use super::HttpConfig;
use super::section::{Given, Section};

/// What an address looks like.
const EXAMPLE: &str = "127.0.0.1:8787";

/// Reads the section, if there is one. A mistake in it is reported.
pub(super) fn read(root: &Section<'_>) -> Option<HttpConfig> {
    let section = root.section("http", "[http]".into())?;
    let listen = section.required_string("listen", EXAMPLE);
    section.finish();
    let Given { value: text, origin } = listen?;
    match text.value.parse() {
        Ok(listen) => Some(HttpConfig { listen }),
        Err(_) => {
            let what = format!("`listen` cannot be \"{}\"", text.written);
            let fix = format!("write an IP address of this host and a port: \"{EXAMPLE}\"");
            root.report.add(&origin, what, fix);
            None
        }
    }
}
