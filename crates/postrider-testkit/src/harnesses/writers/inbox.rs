//! The calls of the inbox, which read the same with every client but for who waits and how.

/// Implements [`OpenInbox`](crate::suites::inbox::OpenInbox) for a transaction with the methods
/// `tx`, `execute`, `finish` and `lose`. Behind the type stands what waits for an answer.
macro_rules! open_inbox {
    ($open:ty, $($wait:tt)*) => {
        #[async_trait::async_trait(?Send)]
        impl crate::suites::inbox::OpenInbox for $open {
            async fn once(&mut self, consumer: &str, event_id: Uuid) -> Result<Claim, WriteError> {
                Inbox::new().once(self.tx(), consumer, event_id)$($wait)*
            }

            async fn once_all(
                &mut self,
                consumer: &str,
                event_ids: &[Uuid],
            ) -> Result<Vec<Claim>, WriteError> {
                Inbox::new().once_all(self.tx(), consumer, event_ids)$($wait)*
            }

            async fn advance(
                &mut self,
                consumer: &str,
                key: &postrider::Key,
                version: u64,
            ) -> Result<postrider::Sequence, WriteError> {
                Inbox::new().advance(self.tx(), consumer, key, version)$($wait)*
            }

            async fn store(&mut self, consumer: &str, event: &Event) -> Result<Claim, WriteError> {
                Inbox::new().store(self.tx(), consumer, event)$($wait)*
            }

            async fn bury(
                &mut self,
                consumer: &str,
                event: &Event,
                error: &str,
                attempts: u32,
            ) -> Result<(), WriteError> {
                Inbox::new().bury(self.tx(), consumer, event, error, attempts)$($wait)*
            }

            async fn revive(
                &mut self,
                consumer: &str,
                event_id: Option<Uuid>,
            ) -> Result<u64, WriteError> {
                Inbox::new().revive(self.tx(), consumer, event_id)$($wait)*
            }

            async fn prune(
                &mut self,
                consumer: &str,
                older_than: std::time::Duration,
                limit: u32,
            ) -> Result<u64, WriteError> {
                Inbox::new().prune(self.tx(), consumer, older_than, limit)$($wait)*
            }

            async fn execute(&mut self, sql: &str) {
                let done = self.execute(sql).await;
                done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
            }

            async fn end(self: Box<Self>, end: End) {
                self.finish(end).await.expect("a transaction can be ended");
            }

            async fn lose(mut self: Box<Self>) {
                (*self).lose().await;
            }
        }
    };
}

pub(super) use open_inbox;
