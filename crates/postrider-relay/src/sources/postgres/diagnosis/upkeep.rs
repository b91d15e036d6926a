//! Checks of what keeps the tables small and quick.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::super::error::Trouble;
use super::super::table::Table;
use super::{Exam, queries, text};
use crate::amounts::{age, size};
use crate::diagnosis::{Finding, Fix};

/// Dead rows of a table that are worth a word.
const DEAD_MIN: i64 = 10_000;
/// Tables that together are larger are worth a word.
const SIZE_MAX: i64 = 50 << 30;
/// Transactions until the server stops taking writes: 2^31, less what it keeps in reserve.
const XIDS_MAX: i64 = 2_100_000_000;
/// So old a row is worth a word: autovacuum should have frozen it long ago.
const XIDS_WARN: i64 = 1_000_000_000;

/// How a table stands.
struct Upkeep {
    table: String,
    is_off: bool,
    live: i64,
    dead: i64,
    vacuumed: Option<Duration>,
    bytes: i64,
}

impl Exam<'_> {
    pub(super) async fn upkeep(&mut self, table: &Table) {
        let tables = self.tables_upkeep().await;
        self.note("autovacuum", tables);
        let wraparound = self.wraparound().await;
        self.note("wraparound", wraparound);
        let sequence = self.sequence(table).await;
        self.note("sequence", sequence);
    }

    async fn tables_upkeep(&self) -> Result<Vec<Finding>, Trouble> {
        let settings = self.settings(&["autovacuum", "track_counts"]).await?;
        let names = self.tables();
        let rows = self.query(queries::UPKEEP, &[(&names, Type::TEXT_ARRAY)]).await?;
        let mut tables = Vec::with_capacity(rows.len());
        for row in &rows {
            let vacuumed: Option<f64> = row.try_get(4)?;
            tables.push(Upkeep {
                table: row.try_get(0)?,
                is_off: row.try_get(1)?,
                live: row.try_get(2)?,
                dead: row.try_get(3)?,
                vacuumed: vacuumed.and_then(|secs| Duration::try_from_secs_f64(secs).ok()),
                bytes: row.try_get(5)?,
            });
        }
        let is_off = |name: &&str| settings.get(*name).is_some_and(|is| is == "off");
        let mut findings = match ["autovacuum", "track_counts"].iter().find(|it| is_off(it)) {
            Some(name) => vec![server_wide(name)],
            None => autovacuum(&tables),
        };
        findings.extend(dead_rows(&tables));
        findings.push(table_size(&tables));
        Ok(findings)
    }

    async fn wraparound(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "wraparound";
        let oldest: i64 = self.row(queries::WRAPAROUND, &[]).await?.try_get(0)?;
        let found = format!("the oldest row that is not frozen is {oldest} transactions old");
        let left = (XIDS_MAX - oldest).max(0);
        let fix = "look for what holds vacuum back (transactions, prepared-transactions, slot), \
                   then run VACUUM (FREEZE) in this database";
        Ok(vec![if oldest < XIDS_WARN {
            Finding::ok(CHECK, found)
        } else if oldest < XIDS_MAX - 200_000_000 {
            Finding::warn(CHECK, format!("{found}; the server stops in {left} more"))
                .with(Fix::advice(fix))
        } else {
            Finding::fail(CHECK, format!("{found}; the server stops in {left} more"))
                .with(Fix::advice(fix))
        }])
    }

    /// Numbers that a session takes ahead are not in the order of time.
    async fn sequence(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "sequence";
        let (name, column) = (table.quoted(), table.theirs("seq"));
        let rows = self.query(queries::SEQUENCE, &[text(&name), text(&column)]).await?;
        let Some(row) = rows.first() else {
            let found = format!("{column} of {name} has no sequence: its writers give the numbers");
            return Ok(vec![Finding::ok(CHECK, found)]);
        };
        let (sequence, cache): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        if cache <= 1 {
            return Ok(vec![Finding::ok(CHECK, "a number taken later is a higher one (CACHE 1)")]);
        }
        let found = format!(
            "each session takes {cache} numbers at once: of two transactions that write to one key \
             in turn, the later one may have the smaller number, and is published first"
        );
        let sql = format!("ALTER SEQUENCE {sequence} CACHE 1");
        Ok(vec![Finding::warn(CHECK, found).with(Fix::sql(sql))])
    }
}

fn server_wide(setting: &str) -> Finding {
    let found = format!("{setting} is off for the whole server: tables grow without end");
    let fix = format!("run ALTER SYSTEM SET {setting} = on, then SELECT pg_reload_conf()");
    Finding::fail("autovacuum", found).with(Fix::advice(fix))
}

fn autovacuum(tables: &[Upkeep]) -> Vec<Finding> {
    const CHECK: &str = "autovacuum";
    let off = tables.iter().filter(|table| table.is_off).map(|table| {
        let found = format!("autovacuum is off for {}: it grows without end", table.table);
        let sql = format!("ALTER TABLE {} RESET (autovacuum_enabled)", table.table);
        Finding::warn(CHECK, found).about(&table.table).with(Fix::sql(sql))
    });
    let off: Vec<Finding> = off.collect();
    if off.is_empty() { vec![Finding::ok(CHECK, "autovacuum is on")] } else { off }
}

fn dead_rows(tables: &[Upkeep]) -> Vec<Finding> {
    const CHECK: &str = "dead-rows";
    let is_bloated = |table: &&Upkeep| table.dead >= DEAD_MIN && table.dead > table.live;
    let bloated = tables.iter().filter(is_bloated).map(|table| {
        let vacuumed = match table.vacuumed {
            Some(ago) => format!("last vacuumed {} ago", age(ago)),
            None => "never vacuumed".to_owned(),
        };
        let found = format!(
            "{} has {} dead rows beside {} live ones, and was {vacuumed}",
            table.table, table.dead, table.live
        );
        let sql = format!("VACUUM {}", table.table);
        Finding::warn(CHECK, found).about(&table.table).with(Fix::sql(sql))
    });
    let bloated: Vec<Finding> = bloated.collect();
    if !bloated.is_empty() {
        return bloated;
    }
    let dead: i64 = tables.iter().map(|table| table.dead).sum();
    let last = tables.iter().filter_map(|table| table.vacuumed).min();
    let last = last.map_or_else(String::new, |ago| format!("; last vacuumed {} ago", age(ago)));
    vec![Finding::ok(CHECK, format!("{dead} dead rows{last}"))]
}

fn table_size(tables: &[Upkeep]) -> Finding {
    const CHECK: &str = "table-size";
    let bytes: i64 = tables.iter().map(|table| table.bytes).sum();
    let rows: i64 = tables.iter().map(|table| table.live).sum();
    let found = format!(
        "the tables have {} and about {rows} rows",
        size(u64::try_from(bytes).unwrap_or(0))
    );
    match bytes > SIZE_MAX {
        false => Finding::ok(CHECK, found),
        true => Finding::warn(CHECK, found).with(Fix::advice(
            "let published events go: [prune] in the configuration, or postrider prune",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Level;

    fn table(live: i64, dead: i64) -> Upkeep {
        Upkeep { table: "s.outbox".into(), is_off: false, live, dead, vacuumed: None, bytes: 1 }
    }

    #[test]
    fn more_dead_rows_than_live_ones_are_worth_a_word() {
        for (live, dead, level) in [
            (0, DEAD_MIN - 1, Level::Ok),
            (DEAD_MIN, DEAD_MIN, Level::Ok),
            (DEAD_MIN, DEAD_MIN + 1, Level::Warn),
        ] {
            assert_eq!(dead_rows(&[table(live, dead)])[0].level, level, "{live} {dead}");
        }
        let sql = dead_rows(&[table(0, DEAD_MIN)]).remove(0).fix.unwrap().text;
        assert_eq!(sql, "VACUUM s.outbox");
    }

    #[test]
    fn large_tables_are_worth_a_word() {
        assert_eq!(table_size(&[table(0, 0)]).level, Level::Ok);
        assert_eq!(table_size(&[Upkeep { bytes: SIZE_MAX + 1, ..table(0, 0) }]).level, Level::Warn);
    }
}
