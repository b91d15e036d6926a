//! Processor time, as the system counts it for each process.

use std::fs;

use tokio_postgres::Client;

use crate::Outcome;

/// The clock of `/proc`: USER_HZ, which is 100 on every platform that Linux runs on today.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processes of the server that serve the relay.
pub(super) async fn sessions(client: &Client) -> Outcome<Vec<i32>> {
    let sql = "SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'postrider%'";
    let sessions = client.query(sql, &[]).await?;
    if sessions.is_empty() {
        return Err("the relay is not connected".into());
    }
    Ok(sessions.iter().map(|row| row.get(0)).collect())
}

/// All processes of the server that stay.
pub(super) async fn server(client: &Client) -> Outcome<Vec<i32>> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type <> 'autovacuum worker'";
    let processes = client.query(sql, &[]).await?;
    Ok(processes.iter().map(|row| row.get(0)).collect())
}

/// Seconds of several processes so far.
pub(super) fn seconds_of(processes: &[i32]) -> Outcome<f64> {
    processes.iter().map(|process| seconds(&process.to_string())).sum()
}

/// Seconds of a process so far, with all its threads.
pub(super) fn seconds(process: &str) -> Outcome<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Fields are counted from behind the name, which is in brackets.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    match (times.next(), times.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((user + system) / TICKS_PER_SECOND),
        _ => Err(format!("/proc/{process}/stat is not as expected").into()),
    }
}
