//! A stream.

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncConnectionConfig, cmd};

use super::{NAME, Place};
use crate::Outcome;

const ID: &str = "postrider-id";
/// Entries that are read at a time.
const PAGE: usize = 10_000;

/// Entries with their own ids and their fields.
type Entries = Vec<(String, Vec<(String, Vec<u8>)>)>;

pub(super) struct Stream {
    connection: MultiplexedConnection,
}

impl Stream {
    pub(super) async fn make(url: &str) -> Outcome<Self> {
        let client = redis::Client::open(url)?;
        // A page may take longer than a single answer has by default.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let stream = Self { connection };
        stream.delete().await?;
        Ok(stream)
    }

    /// With what it remembers.
    async fn delete(&self) -> Outcome<()> {
        let mut connection = self.connection.clone();
        let keys: Vec<String> = connection.keys(format!("*{NAME}*")).await?;
        for key in keys {
            let _: () = connection.del(key).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Place for Stream {
    fn options(&self) -> String {
        format!("topic = {NAME:?}")
    }

    async fn ids(&self) -> Outcome<Vec<String>> {
        let mut connection = self.connection.clone();
        let mut ids = Vec::new();
        let mut from = "-".to_owned();
        loop {
            let mut page = cmd("XRANGE");
            page.arg(NAME).arg(&from).arg("+").arg("COUNT").arg(PAGE);
            let page: Entries = page.query_async(&mut connection).await?;
            let Some((last, _)) = page.last() else { return Ok(ids) };
            from = format!("({last}");
            for (_, fields) in page {
                let id = fields.into_iter().find(|(name, _)| name == ID);
                let (_, id) = id.ok_or("an entry has no id")?;
                ids.push(String::from_utf8(id)?);
            }
        }
    }

    async fn remove(self: Box<Self>) -> Outcome<()> {
        self.delete().await
    }
}
