//! A replica of a private server.
//!
//! It is made as the manual's "low-level backup" says, and not with `pg_basebackup`, which is not
//! part of every package of the server.

use super::server::{Options, Server};
use crate::servers::folder::Folder;

/// Copies a folder while its server runs. Files may change or vanish meanwhile. Slots and the
/// log are the server's own: a replica receives the log by streaming.
const COPY: &str = "mkdir -m 700 data && tar -C \"$1\" --exclude=./postmaster.pid \
    --exclude='./pg_replslot/*' --exclude='./pg_wal/*' --ignore-failed-read --warning=none \
    -cf - . | tar -C data -xf -";

impl Server {
    /// A replica that follows this server by streaming.
    pub async fn standby(&self) -> Self {
        let folder = Folder::new("standby");
        let client = self.connect().await;
        let begun = client.batch_execute("SELECT pg_backup_start('standby', fast => true)").await;
        begun.expect("a backup can begin");
        let mut copy = folder.command("sh");
        copy.args(["-c", COPY, "sh"]).arg(self.data());
        folder.run(copy).await;
        let ended = client.query_one("SELECT labelfile FROM pg_backup_stop(false)", &[]).await;
        let label: String = ended.expect("a backup can end").get(0);
        folder.write("data/backup_label", &label);
        folder.write("data/standby.signal", "");
        let follows = format!("primary_conninfo = '{}'", self.url("postgres"));
        let programs = self.options().programs.clone();
        let options = Options { programs, settings: vec![follows], ..Options::default() };
        Self::start_in(folder, options).await
    }
}
