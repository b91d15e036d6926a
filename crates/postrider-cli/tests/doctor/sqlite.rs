use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use super::{Fixture, doctor};

const FROM: [&str; 2] = ["--from", "sqlite:app.db"];

#[test]
fn a_fresh_outbox_is_well() {
    let fixture = Fixture::migrated();
    let found = doctor(&fixture, &FROM);
    for check in [
        "permissions",
        "integrity",
        "journal-mode",
        "synchronous",
        "writers",
        "free-pages",
        "wal-size",
        "schema",
        "schema-drift",
        "pipeline",
        "relay",
    ] {
        found.is(check, "ok");
    }
    let text = fixture.run(&["doctor", FROM[0], FROM[1]]).assert_code(0).stdout;
    assert!(text.contains("OK    integrity "), "{text}");
    assert!(text.trim_end().ends_with(" failed, 0 skipped"), "{text}");
}

#[test]
fn what_is_not_migrated_is_migrated() {
    let fixture = Fixture::new();
    let found = doctor(&fixture, &FROM);
    assert!(found.is("file", "fail").contains("does not exist"));
    assert_eq!(found.one("file")["fix"], "postrider migrate --from sqlite:app.db");
    assert!(!fixture.path("app.db").exists(), "nothing is made without --fix");

    let mended = doctor(&fixture, &["--from", "sqlite:app.db", "--fix"]);
    mended.is("schema", "ok");
    assert!(mended.ran.stdout.contains(r#""mended":["postrider migrate"#), "{}", mended.ran.stdout);

    fs::remove_file(fixture.path("app.db")).unwrap();
    drop(fixture.database());
    fixture.database().execute_batch("CREATE TABLE x (y)").unwrap();
    let found = doctor(&fixture, &FROM);
    assert_eq!(found.is("schema", "fail"), "outbox has no tables: 3 to apply");
    found.is("pipeline", "fail");
    doctor(&fixture, &["--from", "sqlite:app.db", "--fix"]).is("schema", "ok");
}

#[test]
fn a_journal_and_an_index_are_mended() {
    let fixture = Fixture::migrated();
    fixture
        .database()
        .execute_batch("PRAGMA journal_mode = delete; DROP INDEX outbox_unpublished")
        .unwrap();
    let found = doctor(&fixture, &FROM);
    assert!(found.is("journal-mode", "warn").contains("delete"));
    assert_eq!(found.sql("journal-mode"), "PRAGMA journal_mode = wal");
    assert!(found.is("schema-drift", "warn").contains("outbox_unpublished is missing"));
    let sql = [found.sql("journal-mode"), found.sql("schema-drift")].join(";");
    fixture.database().execute_batch(&sql).unwrap();
    let found = doctor(&fixture, &FROM);
    found.is("journal-mode", "ok");
    found.is("schema-drift", "ok");

    fixture.database().execute_batch("DROP INDEX outbox_unpublished").unwrap();
    doctor(&fixture, &["--from", "sqlite:app.db", "--fix"]).is("schema-drift", "ok");
    fixture.database().execute_batch("CREATE INDEX mine ON outbox (topic)").unwrap();
    let found = doctor(&fixture, &["--from", "sqlite:app.db", "--fix"]);
    assert!(found.is("schema-drift", "warn").contains("mine should not be there"));
}

#[test]
fn a_writer_that_stays_is_named() {
    let fixture = Fixture::migrated();
    let writer = fixture.database();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(doctor(&fixture, &FROM).is("writers", "warn").contains("all others wait"));
    writer.execute_batch("ROLLBACK").unwrap();
    doctor(&fixture, &FROM).is("writers", "ok");
}

#[test]
fn files_that_everybody_can_change_are_named() {
    let fixture = Fixture::migrated();
    let path = fixture.path("app.db");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let found = doctor(&fixture, &FROM);
    assert!(found.is("permissions", "warn").contains("mode 666"));
    let fix = found.one("permissions")["fix"].as_str().unwrap();
    let ran = std::process::Command::new("sh").args(["-c", fix]).status().unwrap();
    assert!(ran.success(), "{fix}");
    doctor(&fixture, &FROM).is("permissions", "ok");
}

#[test]
fn damage_is_found() {
    let fixture = Fixture::migrated();
    for order in 0..300 {
        fixture.insert(&order.to_string(), "OrderPaid", "{}");
    }
    let path = fixture.path("app.db");
    fixture.database().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let (page, pages) = (4096, bytes.len() / 4096);
    let middle = (pages / 2) * page..(pages / 2 + 2) * page;
    bytes[middle].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(&path, bytes).unwrap();
    let found = doctor(&fixture, &FROM);
    found.is("integrity", "fail");
    // The rest goes on.
    found.one("journal-mode");
    found.one("disk-space");
}

#[test]
fn pipelines_and_their_relay_are_looked_at() {
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPaid", "this is not JSON");
    let drain = ["relay", FROM[0], FROM[1], "--to", "file:out.jsonl", "--drain"];
    fixture.run(&drain).assert_code(0);
    let found = doctor(&fixture, &FROM);
    assert!(found.is("pipeline", "warn").contains("1 event is parked"));
    let fix = found.one("pipeline")["fix"].as_str().unwrap();
    assert_eq!(fix, "postrider dlq list --pipeline default --from sqlite:app.db");
    assert!(found.is("relay", "ok").contains("no relay runs it now"));

    let relay = fixture.start(&["relay", FROM[0], FROM[1], "--to", "file:out.jsonl"]);
    let runs = || doctor(&fixture, &FROM).is("relay", "ok").contains("a relay runs it");
    super::support::wait_until("the relay has the pipeline", runs);
    drop(relay);
}
