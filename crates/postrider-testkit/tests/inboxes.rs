//! The inbox suite over every database client.

use std::process::ExitCode;

use postrider_testkit::suites;

fn main() -> ExitCode {
    let mut all = Vec::new();
    all.extend(on_postgres());
    all.extend(on_sqlite());
    suites::run(all)
}

#[cfg(feature = "postgres")]
fn on_postgres() -> Vec<libtest_mimic::Trial> {
    use postrider_testkit::harnesses::writers::{
        diesel_async, schema, sqlx_postgres, tokio_postgres,
    };
    use postrider_testkit::suites::{inbox, trials};

    let backends = [
        diesel_async::backend(),
        sqlx_postgres::backend(),
        sqlx_postgres::pooled(),
        tokio_postgres::backend(),
        tokio_postgres::pooled(),
    ];
    let mut all = trials(inbox::postgres::cases(), schema::backend());
    all.extend(backends.into_iter().flat_map(|backend| trials(inbox::cases(), backend)));
    all
}

#[cfg(not(feature = "postgres"))]
fn on_postgres() -> Vec<libtest_mimic::Trial> {
    let clients = ["diesel_async", "sqlx_postgres", "tokio_postgres"];
    clients.map(|client| suites::not_built(client, "postgres")).into()
}

#[cfg(feature = "sqlite")]
fn on_sqlite() -> Vec<libtest_mimic::Trial> {
    use postrider_testkit::harnesses::writers::{rusqlite, sqlx_sqlite};
    use postrider_testkit::suites::{inbox, trials};

    let backends = [rusqlite::backend(), sqlx_sqlite::backend()];
    backends.into_iter().flat_map(|backend| trials(inbox::cases(), backend)).collect()
}

#[cfg(not(feature = "sqlite"))]
fn on_sqlite() -> Vec<libtest_mimic::Trial> {
    let clients = ["rusqlite", "sqlx_sqlite"];
    clients.map(|client| suites::not_built(client, "sqlite")).into()
}
