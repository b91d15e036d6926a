//! Tables that are gone although the migration that makes them was applied.

use postrider::schema::Drift;
use postrider::schema::postgres::RolePrefix;

use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::plain;

/// Refuses to call an outbox up to date of which tables are gone. Migrations are applied once, and
/// what the tables held cannot be made again: so that is left to an operator, with the SQL.
pub(super) async fn check(outbox: &Outbox) -> Result<(), CliError> {
    // Whoever may not compare the tables hears what every migration says.
    let Ok(differences) = outbox.verify().await else { return Ok(()) };
    let missing = differences.iter().filter(|it| it.drift == Drift::Missing);
    let gone: Vec<&str> = missing.filter_map(|it| it.object.strip_prefix("table ")).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let layout = outbox.migration_status().await?.layout;
    let script = outbox.migration_sql(layout)?;
    let sql: Vec<String> = gone.iter().map(|table| statements(&script, table)).collect();
    let names = plain(&gone.join(", "));
    let what = format!("{names}: gone, although the migration that makes it was applied");
    let rights = match outbox.role_sql(&RolePrefix::default()) {
        Ok(_) => format!(", then grant the rights of `postrider migrate roles {}`", outbox.flags),
        Err(_) => String::new(),
    };
    let sql = sql.join("\n");
    let fix = format!("restore it, or make it anew, empty{rights}; by this SQL:\n\n{sql}");
    Err(CliError::new(Code::Unsafe, what).with_fix(fix))
}

/// The statements of a script that make a table and its indexes.
fn statements(script: &str, table: &str) -> String {
    let quoted = format!("\"{}\"", table.replace('"', "\"\""));
    let starts = [quoted.as_str(), table].map(|name| format!("CREATE TABLE {name} ("));
    let indexes = [quoted.as_str(), table].map(|name| format!(" ON {name} "));
    let is_meant = |statement: &String| {
        starts.iter().any(|start| statement.starts_with(start))
            || statement.starts_with("CREATE INDEX ")
                && indexes.iter().any(|on| statement.contains(on))
    };
    let without_comment = |statement: &str| {
        let is_other = |line: &&str| line.is_empty() || line.starts_with("--");
        statement.lines().skip_while(is_other).collect::<Vec<_>>().join("\n")
    };
    let all = script.split(";\n").map(without_comment).filter(is_meant);
    all.map(|statement| format!("{statement};\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::statements;

    #[test]
    fn a_table_comes_with_its_indexes_alone() {
        let script = "CREATE TABLE \"a\" (\n    x text\n);\nCREATE INDEX \"a_x\" ON \"a\" (x);\n\n\
                      -- Why; and how.\nCREATE TABLE \"b\" (\n    y text -- a; b\n);\n\
                      CREATE INDEX \"b_y\" ON \"b\" (y);\n";
        assert_eq!(
            statements(script, "b"),
            "CREATE TABLE \"b\" (\n    y text -- a; b\n);\nCREATE INDEX \"b_y\" ON \"b\" (y);\n"
        );
    }
}
