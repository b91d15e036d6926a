//! The writer suite over every database client.

use std::process::ExitCode;

use postrider_testkit::suites;

#[cfg(feature = "sqlite")]
fn main() -> ExitCode {
    use postrider_testkit::harnesses::writers;
    use postrider_testkit::suites::{trials, writer};

    let mut all = trials(writer::cases(), writers::rusqlite::backend());
    all.extend(trials(writer::cases(), writers::sqlx_sqlite::backend()));
    suites::run(all)
}

#[cfg(not(feature = "sqlite"))]
fn main() -> ExitCode {
    suites::run(vec![
        suites::not_built("rusqlite", "sqlite"),
        suites::not_built("sqlx_sqlite", "sqlite"),
    ])
}
