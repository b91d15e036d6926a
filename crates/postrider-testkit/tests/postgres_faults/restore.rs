//! A dump of the database is restored in another cluster, where transactions are numbered
//! differently.

use std::process::Stdio;

use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Running, Target, spec};
use postrider_testkit::servers::postgres::{Options, Server};
use tokio::process::Command;

/// Copies a database as `pg_dump from | psql to` does.
async fn copy(from: &str, to: &str) {
    let dump = Command::new("pg_dump").arg(from).stdin(Stdio::null()).output().await.unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1"]).arg(to);
    let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = psql.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut input, &dump.stdout).await.unwrap();
    drop(input);
    assert!(psql.wait().await.unwrap().success());
}

/// A bank of which 20 events were delivered and 10 were not, and its copy in a cluster whose
/// transactions have higher or lower numbers.
async fn restored(progress: Progress, higher: bool) -> (Server, Server, Bank, Target) {
    let mut old = Server::start(Options::default()).await;
    let mut new = Server::start(Options { own_identifier: true, ..Options::default() }).await;
    let ahead = if higher { &mut new } else { &mut old };
    ahead.reset_xid(10_000_000).await;
    let bank = Bank::open(old.url("postgres")).await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    bank.change_often(1, 20).await;
    bank.check(&target, 0).await;
    relay.stop().await;
    bank.change_often(1, 10).await;
    copy(bank.url(), &new.url("postgres")).await;
    let copied = Bank::at(new.url("postgres"), 1000);
    copied.change_often(2, 5).await;
    (old, new, copied, target)
}

/// F38: progress that is kept in the rows is restored with them.
#[tokio::test]
async fn marks_are_restored_with_their_rows() {
    for (progress, higher) in
        [(Progress::Mark, true), (Progress::Mark, false), (Progress::Delete, false)]
    {
        let (_old, _new, bank, target) = restored(progress, higher).await;
        let relay = Running::start(&spec(bank.url(), progress), &target).await;
        bank.check(&target, 0).await;
        // And it goes on: also with what is written while it runs.
        bank.change_often(1, 10).await;
        bank.check(&target, 0).await;
        assert_eq!(relay.stop().await.delivered, 25);
    }
}

/// F38, G-10: a position says nothing in another cluster. What the hint says makes it work.
#[tokio::test]
async fn a_cursor_is_refused_in_another_cluster_until_the_operator_decides() {
    for higher in [true, false] {
        let (_old, _new, bank, target) = restored(Progress::Cursor, higher).await;
        let spec = spec(bank.url(), Progress::Cursor);
        let refused = async || {
            let source = spec.connect().await.unwrap();
            let error = source.resume().await.unwrap_err();
            assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
            error.hint.unwrap()
        };
        let step = "DELETE FROM outbox_checkpoints WHERE pipeline = 'default'";
        let hint = refused().await;
        assert!(hint.contains(step), "{hint}");
        bank.run(step).await;
        let relay = Running::start(&spec, &target).await;
        // Everything that is in the table comes again.
        bank.check(&target, 20).await;
        assert_eq!(relay.stop().await.delivered, 35);
    }
}
