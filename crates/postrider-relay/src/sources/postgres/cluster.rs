//! Which database cluster this is. Transactions of another one are numbered differently.

use tokio_postgres::types::Type;

use super::connection::Connection;
use super::error::Trouble;

const FUNCTION: &str = "pg_control_system()";

/// The identifier of the cluster, if this role may know it.
pub(super) async fn identifier(connection: &Connection) -> Result<Option<i64>, Trouble> {
    // Asked on its own: a statement that names the function is refused, whatever its condition.
    const MAY: &str = "SELECT has_function_privilege($1, 'EXECUTE')";
    let rows = connection.query(MAY, &[(&FUNCTION, Type::TEXT)]).await?;
    if !rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false) {
        return Ok(None);
    }
    let sql = format!("SELECT system_identifier FROM {FUNCTION}");
    let rows = connection.query(&sql, &[]).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}
