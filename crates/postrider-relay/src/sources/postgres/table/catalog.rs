//! Reads a table from the catalog and says what is wrong with it.

use std::collections::BTreeMap;

use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::Connection;
use super::super::error::{Trouble, not_migrated};
use super::{COLUMNS, Column, Holds, Table, misconfigured, not_permitted};
use crate::source::SourceError;
use crate::suggestion::nearest;

/// `$1` a quoted name: the table that the search path finds, with a row for each column.
const TABLE: &str = "
    WITH RECURSIVE found AS MATERIALIZED (
      SELECT c.*, quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS quoted
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
      WHERE c.oid = to_regclass($1)
    ), base AS (
      SELECT a.attnum, a.atttypid AS type FROM found AS c JOIN pg_attribute AS a
      ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
      SELECT b.attnum, t.typbasetype FROM base AS b JOIN pg_type AS t
      ON t.oid = b.type AND t.typtype = 'd'
    ), typed AS (
      SELECT b.attnum, t.oid AS type, t.typcategory FROM base AS b JOIN pg_type AS t
      ON t.oid = b.type AND t.typtype <> 'd'
    ), indexes AS (
      SELECT i.indkey[0] AS attnum, i.indisunique AND i.indnkeyatts = 1 AS is_unique,
        pg_get_expr(i.indpred, i.indrelid) AS only
      FROM found AS c JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisvalid
    )
    SELECT c.quoted, c.relkind::text, c.relpersistence::text, row_security_active(c.oid),
      quote_ident(current_user), has_table_privilege(c.oid, 'SELECT')
        OR has_any_column_privilege(c.oid, 'SELECT'),
      has_table_privilege(c.oid, 'DELETE'),
      a.attname::text, quote_ident(a.attname), t.type, t.typcategory::text,
      format_type(a.atttypid, a.atttypmod), a.attnotnull,
      a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%', false)
        OR EXISTS (SELECT FROM indexes AS i WHERE i.attnum = a.attnum AND i.is_unique
          AND i.only IS NULL),
      coalesce(pg_get_expr(d.adbin, d.adrelid), ''),
      EXISTS (SELECT FROM indexes AS i WHERE i.attnum = a.attnum AND i.only IS NULL),
      ARRAY(SELECT i.only FROM indexes AS i WHERE i.attnum = a.attnum AND i.only IS NOT NULL),
      has_column_privilege(c.oid, a.attnum, 'SELECT'),
      has_column_privilege(c.oid, a.attnum, 'UPDATE')
    FROM found AS c LEFT JOIN typed AS t ON true
    LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = t.attnum
    LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = t.attnum
    ORDER BY t.attnum";

/// `$1` a name: the search path, a schema that has such a table, and whether this role may use it.
const ELSEWHERE: &str = "
    SELECT current_setting('search_path'), quote_ident(n.nspname),
      has_schema_privilege(n.oid, 'USAGE'), quote_ident(current_user)
    FROM (SELECT 1) AS one LEFT JOIN pg_class AS c ON c.relname = $1 AND c.relkind IN ('r', 'p')
    LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
    ORDER BY 3, 2 LIMIT 1";

/// What Debezium calls its columns.
const DEBEZIUM: [(&str, &str); 3] =
    [("aggregate_id", "aggregateid"), ("aggregate_type", "aggregatetype"), ("event_type", "type")];

/// Reads the table from the catalog. `mapping` has its names for our columns.
pub(in super::super) async fn read(
    connection: &Connection,
    table: &TableName,
    mapping: &BTreeMap<String, String>,
) -> Result<Table, Trouble> {
    let rows = connection.query(TABLE, &[(&table.quoted(), Type::TEXT)]).await?;
    let Some(first) = rows.first() else {
        return Err(not_found(connection, table).await?.into());
    };
    let relation = Relation::read(first)?;
    relation.refuse_unsuitable(table)?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        // A table without any columns is one row without one.
        found.extend(Found::read(row)?);
    }
    let columns = Columns { table, quoted: &relation.quoted, found: &found, mapping };
    columns.refuse_unreadable(&relation.role)?;
    let (columns, may_mark) = columns.ours()?;
    Ok(Table {
        quoted: relation.quoted,
        columns,
        mapping: mapping.clone(),
        role: relation.role,
        may_mark,
        may_delete: relation.may_delete,
    })
}

/// Says where there is such a table, or how to make one.
async fn not_found(connection: &Connection, table: &TableName) -> Result<SourceError, Trouble> {
    let location = connection.location();
    let rows = connection.query(ELSEWHERE, &[(&table.as_str(), Type::TEXT)]).await?;
    let Some(row) = rows.first() else {
        return Ok(not_migrated(location, table, format!("{location} has no table {table}")));
    };
    let (path, schema): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
    let (may_use, role): (Option<bool>, String) = (row.try_get(2)?, row.try_get(3)?);
    let what = format!("{location} has no table {table} in the search_path {path}");
    Ok(match (schema, may_use) {
        (Some(schema), Some(false)) => misconfigured(what).with_hint(format!(
            "there is one in the schema {schema}; run GRANT USAGE ON SCHEMA {schema} TO {role} \
             if that is the one"
        )),
        (Some(schema), _) => misconfigured(what).with_hint(format!(
            "there is one in the schema {schema}; set the role's search_path, or write \
             options=-csearch_path%3D{schema} in the URL if that is the one"
        )),
        (None, _) => not_migrated(location, table, what),
    })
}

/// What is known of the table as a whole.
struct Relation {
    quoted: String,
    kind: String,
    persistence: String,
    hides_rows: bool,
    role: String,
    may_select: bool,
    may_delete: bool,
}

impl Relation {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        Ok(Self {
            quoted: row.try_get(0)?,
            kind: row.try_get(1)?,
            persistence: row.try_get(2)?,
            hides_rows: row.try_get(3)?,
            role: row.try_get(4)?,
            may_select: row.try_get(5)?,
            may_delete: row.try_get(6)?,
        })
    }

    fn refuse_unsuitable(&self, table: &TableName) -> Result<(), SourceError> {
        let Self { quoted, role, .. } = self;
        let (what, hint) = if !matches!(self.kind.as_str(), "p" | "r") {
            let kind = match self.kind.as_str() {
                "f" => "a foreign table",
                "m" => "a materialized view",
                "v" => "a view",
                _ => "not a table",
            };
            (format!("{table} is {kind}"), "name the table itself".to_owned())
        } else if self.persistence == "u" {
            (
                format!("{table} is an unlogged table, which a crash of the server empties"),
                format!("run ALTER TABLE {quoted} SET LOGGED"),
            )
        } else if self.persistence != "p" {
            (format!("{table} is a temporary table"), "name a table that stays".to_owned())
        } else if self.hides_rows {
            (
                format!("row-level security of {table} can hide events from the role {role}"),
                format!("run ALTER ROLE {role} BYPASSRLS, or connect as the owner of the table"),
            )
        } else if !self.may_select {
            let message = format!("the role {role} may not read {table}");
            return Err(not_permitted(message).with_hint(let_it_read(quoted, role)));
        } else {
            return Ok(());
        };
        Err(misconfigured(what).with_hint(hint))
    }
}

/// Whoever may not read may be connected as the wrong role.
fn let_it_read(quoted: &str, role: &str) -> String {
    format!(
        "run GRANT SELECT ON {quoted} TO {role}, or connect as the relay's role, which `postrider \
         migrate roles` prints"
    )
}

/// A column as the catalog has it.
struct Found {
    name: String,
    quoted: String,
    ty: Type,
    category: String,
    /// The type as people write it.
    written: String,
    not_null: bool,
    /// It numbers rows: by itself, or at least no two alike.
    numbers: bool,
    default: String,
    index: bool,
    /// The conditions of indexes that have only some rows.
    partial_indexes: Vec<String>,
    may_select: bool,
    may_update: bool,
}

impl Found {
    fn read(row: &Row) -> Result<Option<Self>, tokio_postgres::Error> {
        let Some(name) = row.try_get(7)? else { return Ok(None) };
        let oid: u32 = row.try_get(9)?;
        Ok(Some(Self {
            name,
            quoted: row.try_get(8)?,
            ty: Type::from_oid(oid).unwrap_or(Type::UNKNOWN),
            category: row.try_get(10)?,
            written: row.try_get(11)?,
            not_null: row.try_get(12)?,
            numbers: row.try_get(13)?,
            default: row.try_get(14)?,
            index: row.try_get(15)?,
            partial_indexes: row.try_get(16)?,
            may_select: row.try_get(17)?,
            may_update: row.try_get(18)?,
        }))
    }

    /// Its type, if it may be in a column of ours; otherwise what may be.
    fn accepted(&self, holds: Holds) -> Result<Type, &'static str> {
        let is_integer = matches!(self.ty, Type::INT2 | Type::INT4 | Type::INT8);
        let is_text = matches!(self.category.as_str(), "S");
        let is_uuid = self.ty == Type::UUID;
        let (accepted, expected) = match holds {
            Holds::Id => (is_uuid || is_integer || is_text, "uuid, text or an integer"),
            Holds::Integer => (is_integer, "smallint, integer or bigint"),
            Holds::Json => {
                (is_text || matches!(self.ty, Type::JSON | Type::JSONB), "jsonb, json or text")
            }
            Holds::Name => (
                is_text || is_uuid || is_integer || self.category == "E",
                "text, an enum, uuid or an integer",
            ),
            Holds::Payload => (
                is_text || matches!(self.ty, Type::BYTEA | Type::JSON | Type::JSONB),
                "bytea, jsonb, json or text",
            ),
            Holds::Time => {
                (matches!(self.ty, Type::TIMESTAMP | Type::TIMESTAMPTZ), "timestamptz or timestamp")
            }
            Holds::Transaction => (self.ty == Type::XID8, "xid8"),
        };
        match accepted {
            // Of the texts, these need no conversion.
            true if is_text && !matches!(self.ty, Type::TEXT | Type::VARCHAR | Type::BPCHAR) => {
                Ok(Type::UNKNOWN)
            }
            true => Ok(self.ty.clone()),
            false => Err(expected),
        }
    }
}

/// The columns of a table, to be found by our names.
struct Columns<'t> {
    table: &'t TableName,
    quoted: &'t str,
    found: &'t [Found],
    mapping: &'t BTreeMap<String, String>,
}

impl Columns<'_> {
    /// Refuses a role that may not read all of the columns.
    fn refuse_unreadable(&self, role: &str) -> Result<(), SourceError> {
        let Self { table, quoted, .. } = self;
        let found = COLUMNS.iter().filter_map(|(ours, ..)| self.find(ours));
        let unreadable = found.filter(|found| !found.may_select);
        let names: Vec<&str> = unreadable.map(|found| found.quoted.as_str()).collect();
        let columns = match names.as_slice() {
            [] => return Ok(()),
            [name] => format!("the column {name}"),
            names => format!("the columns {}", names.join(", ")),
        };
        Err(not_permitted(format!("the role {role} may not read {columns} of {table}"))
            .with_hint(let_it_read(quoted, role)))
    }

    /// The columns by our names, and whether rows may be marked.
    fn ours(&self) -> Result<(BTreeMap<&'static str, Column>, bool), SourceError> {
        let mut columns = BTreeMap::new();
        let mut problems = Vec::new();
        let mut may_mark = false;
        let published_at =
            self.find("published_at").map(|found| format!("({} IS NULL)", found.quoted));
        for ours in self.mapping.keys() {
            let mut known = COLUMNS.iter().map(|(name, ..)| *name);
            if !known.clone().any(|name| name == ours) {
                let meant = nearest(ours, known.by_ref());
                let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
                problems.push(format!("an outbox has no column {ours}{meant}"));
            }
        }
        for (ours, holds, instead) in COLUMNS {
            let Some(found) = self.find(ours) else {
                if instead.is_none() || self.mapping.contains_key(ours) {
                    problems.push(self.missing(ours));
                }
                continue;
            };
            problems.extend(self.unfit(ours, found));
            match found.accepted(holds) {
                Err(expected) => problems.push(format!(
                    "the column {} is of type {}; for {ours} it has to be {expected}",
                    found.quoted, found.written
                )),
                Ok(ty) => {
                    if ours == "published_at" {
                        may_mark = found.may_update;
                    }
                    let unpublished_index = found
                        .partial_indexes
                        .iter()
                        .any(|only| Some(only) == published_at.as_ref());
                    let name = found.quoted.clone();
                    columns
                        .insert(ours, Column { name, ty, index: found.index, unpublished_index });
                }
            }
        }
        if problems.is_empty() {
            return Ok((columns, may_mark));
        }
        let Self { table, .. } = self;
        let message = format!("{table} cannot be relayed: {}", problems.join("; "));
        Err(misconfigured(message)
            .with_hint("change the table, or name its columns in [source.columns]"))
    }

    fn find(&self, ours: &str) -> Option<&Found> {
        let theirs = self.mapping.get(ours).map_or(ours, String::as_str);
        self.found.iter().find(|found| found.name == theirs)
    }

    fn has(&self, name: &str) -> bool {
        self.found.iter().any(|found| found.name == name)
    }

    /// What to do about a column that is not there.
    fn missing(&self, ours: &str) -> String {
        let quoted = self.quoted;
        if let Some(theirs) = self.mapping.get(ours) {
            let names = self.found.iter().map(|found| found.name.as_str());
            let meant = nearest(theirs, names);
            let meant = meant.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default();
            return format!("there is no column {theirs:?}, which was named for {ours}{meant}");
        }
        let debezium = DEBEZIUM.iter().find(|(name, theirs)| *name == ours && self.has(theirs));
        let is_number =
            |found: &&Found| found.name == "id" && found.accepted(Holds::Integer).is_ok();
        let fix = match (ours, debezium, self.found.iter().find(is_number)) {
            (_, Some((_, theirs)), _) => format!("write {ours} = {theirs:?} in [source.columns]"),
            ("seq", None, Some(_)) => "write seq = \"id\" in [source.columns]".to_owned(),
            ("seq", None, None) => format!(
                "ALTER TABLE {quoted} ADD COLUMN seq bigint GENERATED BY DEFAULT AS IDENTITY"
            ),
            _ => return format!("there is no column {ours}"),
        };
        format!("there is no column {ours} ({fix})")
    }

    /// What would make a column lose events.
    fn unfit(&self, ours: &str, found: &Found) -> Option<String> {
        let (quoted, name) = (self.quoted, &found.quoted);
        let alter = format!("ALTER TABLE {quoted} ALTER COLUMN {name} SET");
        match ours {
            "seq" | "xid" if !found.not_null => Some(format!(
                "the column {name} may be NULL, and such a row would never be found ({alter} NOT \
                 NULL)"
            )),
            "seq" if !found.numbers => Some(format!(
                "nothing keeps the column {name} from having a number twice (CREATE UNIQUE INDEX \
                 ON {quoted} ({name}))"
            )),
            "xid" if !found.default.ends_with("pg_current_xact_id()") => Some(format!(
                "the column {name} is not filled by itself ({alter} DEFAULT pg_current_xact_id())"
            )),
            _ => None,
        }
    }
}
